"""Records for the tests of what people look at."""

from __future__ import annotations

import random
from typing import Any

from suffixspec_service.monitor import Piece, RequestRecord

SOURCES = ("session", "global", "ngram", "prediction", "forced")


def record(**changed: Any) -> RequestRecord:
    """A request with some drafts; what matters to a test is given."""
    values: dict[str, Any] = {
        "tenant": "local",
        "namespace": "local/smollm2/abc",
        "model": "smollm2",
        "api": "chat",
        "request_id": "r1",
        "session_id": "s1",
        "started_at": 1000.0,
        "ttft_s": 0.02,
        "duration_s": 0.5,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 30,
        "steps": 12,
        "steps_with_draft": 8,
        "drafted": 40,
        "accepted": 18,
        "accepted_per_position": (8, 6, 4),
        "by_source": {"session": (30, 15), "global": (10, 3)},
    }
    return RequestRecord(**values | changed)


def drafting(accepted: float, *, drafted: int = 100, **changed: Any) -> RequestRecord:
    """A request of which a share of the drafted tokens was accepted."""
    count = round(accepted * drafted)
    return record(
        drafted=drafted,
        output_tokens=12 + count,
        accepted=count,
        by_source={"session": (drafted, count)},
        accepted_per_position=(count,),
        **changed,
    )


def spoken(text: str, **changed: Any) -> RequestRecord:
    """A request whose words are tokens: every second was drafted, and one draft was wrong."""
    words = [word + " " for word in text.split(" ")]
    pieces = []
    for place, word in enumerate(words):
        if place == 2:
            pieces.append(Piece("wrong ", "global", False, 5, 1))
        source = ("none", "session", "global")[place % 3]
        pieces.append(Piece(word, source, True, 7 if source != "none" else 0, place // 3))
    return record(pieces=tuple(pieces), output_tokens=len(words), **changed)


def made_up(rng: random.Random) -> RequestRecord:
    """Any request, consistent in itself."""
    by_source = {}
    for source in rng.sample(SOURCES, rng.randint(0, 3)):
        drafted = rng.randint(1, 50)
        by_source[source] = (drafted, rng.randint(0, drafted))
    drafted = sum(d for d, _ in by_source.values())
    accepted = sum(a for _, a in by_source.values())
    steps = rng.randint(1, 40)
    return record(
        tenant=rng.choice(["a", "b", "c"]),
        namespace=rng.choice(["a/m/t", "b/m/t"]),
        model=rng.choice(["m", "n"]),
        api=rng.choice(["chat", "grpc", "made-up"]),
        status=rng.choice(["ok", "length", "cancelled"]),
        steps=steps,
        steps_with_draft=rng.randint(0, steps),
        output_tokens=steps + accepted,
        drafted=drafted,
        accepted=accepted,
        by_source=by_source,
        accepted_per_position=tuple(rng.randint(0, 9) for _ in range(rng.choice([0, 3, 80]))),
        ttft_s=rng.choice([None, rng.random()]),
        gaps_s=tuple(rng.random() for _ in range(rng.randint(0, 5))),
    )
