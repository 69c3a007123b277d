"""What the service is made of, and its life: start, drain, close.

Every door (HTTP, gRPC, dashboard) is given the one :class:`Runtime` of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from suffixspec_index.index import SuffixIndex
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.admission import Admission
from suffixspec_service.callers import Callers
from suffixspec_service.config import ServiceConfig, is_loopback
from suffixspec_service.drafting import Drafting, DraftingConfig
from suffixspec_service.endings import Endings
from suffixspec_service.jobs import Jobs, JobsConfig
from suffixspec_service.learned import Learned
from suffixspec_service.logs import get_logger
from suffixspec_service.monitor import Monitor, MonitorConfig
from suffixspec_service.monitor.runtime_probe import RuntimeProbe
from suffixspec_service.sessions import SessionTable
from suffixspec_service.spaces import ModelIdentity, Spaces

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.streams import RequestStream
    from suffixspec_index.sharing import Sharing
    from suffixspec_service.prompts import PromptBuilder

_EXPIRE_EVERY_S = 5.0
_LEASES_EVERY_S = 1.0
_KEEP_EVERY_S = 60.0
_POOL_THREADS = 8  # most of them wait: for an index's lock, or the engine's
T = TypeVar("T")
_log = get_logger(__name__)


class Runtime:
    """The parts of a running service.

    Args:
        config: how it runs.
        engine: generates; ``None``: the service drafts for other engines only.
        speculative: what is proposed.
        model_name: what requests call the engine's model; ``None``: its own name.
        monitor: counts requests; ``None``: one with ``monitor_config``.
        monitor_config: see there; ``None``: text is kept on loopback without keys only.
        jobs_config: how much replay and tuning jobs may use.
        sharing: shares what namespaces learn with other processes, and with this one after a
            restart; it is closed with the runtime.
        drafting_config: bounds of drafting for other engines.
        learned_file: where acceptance, calibration, rates and costs are kept across restarts;
            ``None``: nowhere.
        chat_template: used instead of the one that the model's tokenizer has.

    Raises:
        ConfigError: public without keys, a keys file that cannot be read, and the like.

    Attributes:
        callers, admission, spaces, sessions, monitor, jobs, drafting: as their classes say.
        endings: answers whose sessions are not remembered yet.
        sharing: as given.
        prompts: renders conversations; ``None`` without an engine.
        index_pool: threads for index work that may take longer than a millisecond.
        started_at: seconds since 1970.
        ready: everything is warm, and requests are taken.
        draining: no new requests are taken.
    """

    def __init__(
        self,
        config: ServiceConfig,
        engine: Engine | None = None,
        *,
        speculative: SpeculativeConfig | None = None,
        model_name: str | None = None,
        monitor: Monitor | None = None,
        monitor_config: MonitorConfig | None = None,
        jobs_config: JobsConfig | None = None,
        sharing: Sharing | None = None,
        chat_template: str | None = None,
        drafting_config: DraftingConfig | None = None,
        learned_file: Path | None = None,
    ) -> None:
        config.check_exposure()
        self.config = config
        self.engine = engine
        self.callers = Callers.of(config)
        self.admission = Admission()
        if monitor_config is None:
            private = not config.has_keys and is_loopback(config.host)
            monitor_config = MonitorConfig(keep_text=private)
        self.monitor = monitor or Monitor(monitor_config)
        self.jobs = Jobs(jobs_config)
        self.sharing = sharing
        self.model = ModelIdentity.of(engine.model, model_name) if engine is not None else None
        self.learned = Learned(learned_file, engine) if learned_file is not None else None
        self.spaces = Spaces(
            speculative or SpeculativeConfig(),
            self.model,
            max_namespaces=config.max_namespaces,
            proposer_of=engine.proposer_of if engine is not None else None,
            share=self._attach,
        )
        self.sessions = SessionTable(
            config.max_sessions, config.session_idle_seconds, ended=self._session_ended
        )
        self.endings = Endings()
        self.prompts = _prompt_builder(engine, chat_template)
        self.index_pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="suffixspec-index")
        self.drafting = Drafting(
            self.spaces,
            drafting_config,
            observe=self.monitor.observe,
            observe_propose=self.monitor.observe_propose,
            purged=self._purged,
        )
        self.started_at = time.time()
        self.ready = False
        self.draining = False
        self._background: list[asyncio.Task[None]] = []
        self._kept: set[asyncio.Task[None]] = set()

    async def start(self, progress: Callable[[str], None] | None = None) -> None:
        """Make everything warm, then be ready.

        Args:
            progress: called with what is being done, from another thread.
        """
        await asyncio.to_thread(self._warm_up, progress)
        self._background.append(asyncio.create_task(self._expire_sessions()))
        self._background.append(asyncio.create_task(self._expire_leases()))
        self._background.append(asyncio.create_task(self._keep_learned()))
        self.monitor.watch(RuntimeProbe(self))
        self.monitor.start()
        self.ready = True
        _log.info("ready", model=self.model.name if self.model else None)

    async def drain(self, seconds: float | None = None) -> bool:
        """Take no new requests and wait for the running ones.

        Args:
            seconds: at most so long; ``None``: as configured.

        Returns:
            Whether all of them ended by themselves.
        """
        self.draining = True
        self.ready = False
        self.admission.stop()
        self.drafting.stop()
        most = self.config.drain_seconds if seconds is None else seconds
        end = time.monotonic() + most
        _log.info("draining", running=self.admission.running, seconds=most)
        while self.admission.running and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not self.admission.running

    async def close(self) -> None:
        """End what still runs and free everything. May be called twice."""
        self.ready = False
        self.admission.stop()
        self.drafting.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        await asyncio.to_thread(self.drafting.close_all)
        await self.jobs.close()
        await self.monitor.stop()
        if self.engine is not None:
            await asyncio.to_thread(self.engine.close)
        await asyncio.gather(*list(self._kept), return_exceptions=True)
        self.index_pool.shutdown(wait=True, cancel_futures=True)
        if self.learned is not None:
            await asyncio.to_thread(self.learned.save)
        if self.sharing is not None:
            await asyncio.to_thread(self.sharing.close)
        _log.info("closed")

    async def in_pool(self, call: Callable[..., T], *args: object) -> T:
        """``call(*args)`` in a thread of ``index_pool``: for what may wait for a lock or take
        longer than a millisecond."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.index_pool, partial(call, *args))

    def cancel(self, stream: RequestStream) -> None:
        """End a request of the engine, without waiting for the engine's lock."""
        self.index_pool.submit(stream.cancel)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it is done; :meth:`close` waits for it."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def _warm_up(self, progress: Callable[[str], None] | None) -> None:
        from suffixspec_index.warm_up import warm_up

        warm_up(progress)
        self.drafting.warm_up()
        if self.model is not None and not self.callers.needs_key:
            self.spaces.of(self.callers.authenticate(None))  # a log is read back from now on
        if self.engine is not None:
            if progress is not None:
                progress("warming the model up")
            self._generate_once(self.engine)

    def _generate_once(self, engine: Engine) -> None:
        """The first generation and the first grammar take longer than others."""
        from suffixspec_engine.grammar import GrammarSpec
        from suffixspec_engine.sampling import SamplingParams

        spec = GrammarSpec.choice(["yes"]) if engine.model.tokenizer is not None else None
        prompt = [token for token in range(8) if token < engine.model.vocab_size]
        stream = engine.stream(prompt, SamplingParams(max_tokens=2), grammar=spec, max_draft=0)
        stream.output()

    async def _expire_sessions(self) -> None:
        while True:
            await asyncio.sleep(min(_EXPIRE_EVERY_S, self.config.session_idle_seconds))
            await self.in_pool(self.sessions.expire)
            self.jobs.expire()

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(min(_LEASES_EVERY_S, self.drafting.config.lease_seconds))
            await self.in_pool(self.drafting.expire)

    def _purged(self, key: NamespaceKey) -> None:
        """What the engine keeps of a namespace goes too: keys and values of its sessions, and what
        a draft model holds. Waits for the engine to be between two steps."""
        if self.engine is not None:
            self.engine.drop_namespace(key.digest)

    async def _keep_learned(self) -> None:
        while self.learned is not None:
            await asyncio.sleep(_KEEP_EVERY_S)
            await self.in_pool(self.learned.save)

    def _attach(self, key: NamespaceKey, index: SuffixIndex | None, proposer: Proposer) -> Proposer:
        """A new space takes up what was learned, then what was said."""
        if self.learned is not None and index is not None:
            self.learned.restore_index(key, index)
        return proposer if self.sharing is None else self.sharing.attach(key, index, proposer)

    def _session_ended(self, key: NamespaceKey, name: str) -> None:
        self.index_pool.submit(self._forget_session, key, name)

    def _forget_session(self, key: NamespaceKey, name: str) -> None:
        """Waits for the engine to be between two steps, so not for the event loop."""
        if self.engine is None:
            return
        for space in self.spaces.all(key.tenant):
            if space.key == key:
                for proposer in (space.proposer, space.predictive):
                    self.engine.end_session(name, namespace=key.digest, proposer=proposer)


def _prompt_builder(engine: Engine | None, chat_template: str | None) -> PromptBuilder | None:
    if engine is None:
        return None  # and torch is never loaded
    from suffixspec_service.prompts import PromptBuilder

    return PromptBuilder(engine.model.tokenizer, chat_template)
