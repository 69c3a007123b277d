"""Who is compared, and the rounds in which they take turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from suffixspec.bench.backends import Backend, Sampling
from suffixspec.bench.backends.in_process import InProcessBackend
from suffixspec.bench.backends.openai_server import OpenAIBackend
from suffixspec.bench.load import Load, run_round, warm_up
from suffixspec.bench.results import Round
from suffixspec.bench.workload import Workload
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.model import TokenSession
from suffixspec_traces.replay import ReplayPlan, replay

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

ENGINE_RUNNING = 16
"""Requests that an engine in this process advances together where no concurrency is asked for."""


@dataclass(frozen=True, slots=True)
class Rival:
    """One who is measured.

    Attributes:
        label: what reports call it.
        open: starts it anew, with nothing cached or learned where that is in our hands.
    """

    label: str
    open: Callable[[], Awaitable[Backend]]


def engine_rivals(
    target: TargetModel,
    methods: Sequence[tuple[str, SpeculativeConfig]],
    sampling: Sampling,
    *,
    concurrency: int | None,
    requests: int,
    taught: Sequence[TokenSession] = (),
) -> list[Rival]:
    """An engine in this process per method; a new one for every round.

    Args:
        methods: label and configuration of each.
        concurrency: requests at once.
        requests: most that may wait.
        taught: sessions that each method's index has served before.
    """

    async def start(speculative: SpeculativeConfig) -> Backend:
        from suffixspec_engine.engine import Engine
        from suffixspec_engine.engine_config import EngineConfig

        config = EngineConfig(
            max_running=concurrency or ENGINE_RUNNING, max_waiting=max(requests, 256)
        )
        engine = Engine(target, speculative=speculative, config=config)
        if taught and engine.proposer is not None:
            replay(ReplayPlan.build(taught, concurrency=1), engine.proposer)
        return InProcessBackend(engine, sampling)

    return [Rival(label, partial(start, speculative)) for label, speculative in methods]


def server_rivals(urls: Sequence[str], sampling: Sampling, **options: Any) -> list[Rival]:
    """A server per address, written ``URL`` or ``LABEL=URL``.

    Args:
        options: as for :meth:`OpenAIBackend.connect`.

    Raises:
        ConfigError: an address is none, or a label comes twice.
    """
    rivals: list[Rival] = []
    for text in urls:
        label, equals, url = text.partition("=")
        if not equals or "://" in label:
            label, url = text.partition("://")[2].rstrip("/"), text
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--base-url: {text!r} does not begin with http:// or https://")
        if any(label == rival.label for rival in rivals):
            raise ConfigError(f"--base-url: {label!r} is given twice; name them LABEL=URL")

        async def connect(url: str = url) -> Backend:
            return await OpenAIBackend.connect(url, sampling=sampling, **options)

        rivals.append(Rival(label, connect))
    return rivals


async def run_rounds(
    rivals: Sequence[Rival],
    workload: Workload,
    load: Load,
    rounds: Mapping[str, list[Round]],
    *,
    repeats: int,
    warm_ups: int,
    told: Callable[[str, int], None] | None = None,
) -> None:
    """Let rivals serve the workload A B A B ..., so that a slow minute hits all alike.

    Args:
        rounds: by label; filled while it runs, so that what is done is there when it is stopped.
        warm_ups: requests before each round that are not counted.
        told: called after every request with the rival's label and how many it has answered.
    """
    for _ in range(repeats):
        for rival in rivals:
            backend = await rival.open()
            try:
                await warm_up(backend, workload, warm_ups)
                before = sum(len(one.results) for one in rounds[rival.label])
                one = Round()
                rounds[rival.label].append(one)

                def tell(done: int, label: str = rival.label, before: int = before) -> None:
                    if told is not None:
                        told(label, before + done)

                await run_round(backend, workload, load, one, tell)
            finally:
                await backend.aclose()
