"""Messages for the recorder: the same with and without speculation, loops ended at one place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pytest.importorskip("transformers")

from suffixspec_engine.engine import Engine
from suffixspec_engine.models import load_model
from suffixspec_engine.text_model import EngineTextModel, repeats
from suffixspec_index.errors import CapacityError, ConfigError, GenerationError
from tests.engine.conftest import EOS, write_tiny_llama
from tests.engine.said import said
from tests.threads import ended

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

SUFFIX: dict[str, Any] = {"method": "suffix", "suffix_decoding_min_token_prob": 0.0}


def prompt(seed: int, length: int = 12) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, 200, length, dtype=np.int32)


@pytest.fixture
def plain(target: TargetModel) -> Iterator[Engine]:
    with Engine(target) as engine:
        yield engine


def test_greedy_messages_are_transformers_own(plain: Engine, reference: Any) -> None:
    model = EngineTextModel(plain)
    first = model.generate(prompt(1), key="a", max_new_tokens=24)
    longer = np.concatenate([prompt(1), first, prompt(9, 5)])  # goes on from the first one's cache
    second = model.generate(longer, key="a", max_new_tokens=24)
    assert first.tolist() == said(reference, prompt(1), 24)
    assert second.tolist() == said(reference, longer, 24)


def test_drafts_change_no_message(target: TargetModel, plain: Engine) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 5, "repeat_limit": 3}
    prompts = [np.tile(prompt(seed, 8), 5) for seed in range(6)]
    with Engine(target, speculative=SUFFIX) as drafting:
        alone, drafted = EngineTextModel(plain, **settings), EngineTextModel(drafting, **settings)
        wanted = [alone.generate(p, key=f"s{i}", max_new_tokens=60) for i, p in enumerate(prompts)]
        found: dict[int, NDArray[np.int32]] = {}

        def one(number: int) -> None:
            found[number] = drafted.generate(prompts[number], key=f"s{number}", max_new_tokens=60)

        threads = [
            threading.Thread(daemon=True, target=one, args=(i,)) for i in range(len(prompts))
        ]
        for thread in threads:
            thread.start()
        ended(threads)
        assert drafting.metrics.counts.accepted > 0
    assert [found[i].tolist() for i in range(len(prompts))] == [w.tolist() for w in wanted]


def test_draws_depend_on_seed_and_session(plain: Engine) -> None:
    settings: dict[str, Any] = {"temperature": 1.0}
    ask = prompt(7)

    def said_by(key: str, seed: int) -> list[int]:
        model = EngineTextModel(plain, seed=seed, **settings)
        tokens: list[int] = model.generate(ask, key=key, max_new_tokens=12).tolist()
        return tokens

    assert said_by("x", 1) == said_by("x", 1)
    assert said_by("x", 1) != said_by("y", 1)
    assert said_by("x", 1) != said_by("x", 2)


def test_a_loop_ends_in_the_middle_of_a_block(tmp_path: Path) -> None:
    """Weights as small as these soon loop; with drafts, rounds of it are accepted at once."""
    looping = load_model(write_tiny_llama(tmp_path, initializer_range=0.1))
    ask = np.tile(prompt(3, 6), 6)
    with Engine(looping) as alone:
        endless = EngineTextModel(alone).generate(ask, key="l", max_new_tokens=200).tolist()
    assert EOS not in endless
    with Engine(looping, speculative=SUFFIX) as drafting:
        model = EngineTextModel(drafting, repeat_limit=2)
        output = model.generate(ask, key="l", max_new_tokens=200).tolist()
        again = model.generate(ask, key="l", max_new_tokens=200).tolist()
        drafting.check_integrity()
    ends = [n for n in range(1, 201) if repeats(endless[:n], 2)]
    assert output == again == endless[: ends[0]]
    assert len(output) < 200


def test_closing_ends_what_is_generated(target: TargetModel) -> None:
    model = EngineTextModel(Engine(target))
    errors: list[Exception] = []

    def write() -> None:
        try:
            for turn in range(1000):
                model.generate(prompt(turn, 20), key="a", max_new_tokens=200)
        except (GenerationError, CapacityError) as error:
            errors.append(error)

    thread = threading.Thread(daemon=True, target=write)
    thread.start()
    model.close()
    ended([thread], 30)
    assert len(errors) == 1


def test_wrong_settings(plain: Engine) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        EngineTextModel(plain, temperature=-1.0)
    with pytest.raises(ConfigError, match="top_p"):
        EngineTextModel(plain, top_p=0.0)
    with pytest.raises(ConfigError, match="repeat_limit is 1"):
        EngineTextModel(plain, repeat_limit=1)
    with pytest.raises(ConfigError, match="max_tokens"):
        EngineTextModel(plain).generate(prompt(1), key="k", max_new_tokens=0)


def test_repeats() -> None:
    assert repeats([1, 2, *[3, 4, 5, 6, 7, 8] * 3], 3)
    assert not repeats([1, 2, *[3, 4, 5, 6, 7, 8] * 3, 9], 3)
    assert not repeats([7] * 12, 3)  # too short to be a loop: a row of dashes
    assert repeats([7] * 18, 3)
    assert not repeats(list(range(100)), 3)
    assert not repeats([], 3)
