"""Drafting for engines in other processes: leases, requests, steps. Knows no transport.

A client opens a lease in a namespace of its tenant and then works as an engine works with a
proposer: it begins requests, tells at every step what they gained, gets drafts, finishes them. What
a client leaves behind when it vanishes is ended when its lease runs out.

Calls may come from several threads. One lease's calls are served one at a time, in the order in
which they come; :class:`~.calls.DraftingCalls` brings them here from an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.errors import ConfigError, InputError, UnavailableError
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.tokens import as_token_array
from suffixspec_service.callers import Tenant
from suffixspec_service.drafting.acceptance import Acceptance, AcceptanceLedger, as_paths
from suffixspec_service.drafting.checks import check_name, check_once, check_rows, identity_of
from suffixspec_service.drafting.config import DraftingConfig
from suffixspec_service.drafting.leases import Lease, LeaseTable, unknown_lease
from suffixspec_service.drafting.messages import (
    DraftingStatistics,
    LeaseTerms,
    NewRequest,
    OpenLease,
    Step,
    Tokens,
)
from suffixspec_service.drafting.requests import Requests, check_context, limits_of
from suffixspec_service.monitor.records import RequestRecord
from suffixspec_service.spaces import Spaces


class Drafting:
    """See the module docstring.

    Args:
        spaces: where drafts come from.
        config: bounds.
        observe: called with a record of every request that ended.
        observe_propose: called with the seconds and the rows of every call of a proposer.
        purged: called with each namespace whose contents a client had forgotten.
        clock: seconds, monotonic; for tests.
    """

    def __init__(
        self,
        spaces: Spaces,
        config: DraftingConfig | None = None,
        *,
        observe: Callable[[RequestRecord], None] | None = None,
        observe_propose: Callable[[float, int], None] | None = None,
        purged: Callable[[NamespaceKey], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or DraftingConfig()
        self._spaces = spaces
        self._purged = purged
        self._clock = clock
        self._leases = LeaseTable(self.config)
        self._requests = Requests(self.config, self._leases, observe, observe_propose, clock)
        self._stopping = False

    # -- leases --------------------------------------------------------------------------------

    def open(self, tenant: Tenant, wish: OpenLease) -> LeaseTerms:
        """Open a lease. About a millisecond where the namespace is new.

        Raises:
            InputError, ConfigError: a field is wrong. LimitExceededError: the tenant has too many
                leases or namespaces. UnavailableError: the service is stopping.
        """
        self._check_running()
        ttl = self._ttl(wish.ttl_seconds)
        model = identity_of(wish)
        replaced = self._leases.find(tenant, wish.replaces) if wish.replaces else None
        if replaced is not None:
            self._end(replaced, "replaced")
        space = self._spaces.of(tenant, wish.adapter, model=model)
        lease = self._leases.add(
            tenant, space, paths_only=wish.paths_only, ttl=ttl, now=self._clock()
        )
        return self._terms(lease)

    def keep_alive(self, tenant: Tenant, name: str) -> float:
        """Renew a lease, as every other call does too; returns its seconds.

        Raises:
            UnknownLeaseError: it is not open (any more); so for every call with a lease.
        """
        return self._leases.renewed(tenant, name, self._clock()).ttl_seconds

    def close(self, tenant: Tenant, name: str) -> int:
        """End a lease and what is open under it, outputs so far remembered; returns the number of
        requests that were open."""
        return self._end(self._leases.renewed(tenant, name, self._clock()), "cancelled")

    # -- requests ------------------------------------------------------------------------------

    def begin(self, tenant: Tenant, name: str, requests: Sequence[NewRequest]) -> list[int]:
        """Begin requests: all of them or, where an error is raised, none. O(new tokens).

        Returns:
            Per request: the tokens of its context.

        Raises:
            InputError, TokenError: a field is wrong; names it. OutOfStepError: the session holds
                another context than a request goes on from. LimitExceededError: too many requests
                or sessions. UnavailableError: the service is stopping.
        """
        lease = self._leases.renewed(tenant, name, self._clock())
        self._check_running()
        check_rows(len(requests), self.config.max_rows, "requests")
        with self._using(lease):
            prompts = self._requests.check(lease, requests)
            with self._leases.reserving(tenant, len(requests)):
                self._requests.begin(lease, requests, prompts)
        return [len(prompt) for prompt in prompts]

    def step(self, tenant: Tenant, name: str, step: Step) -> DraftBatch:
        """Advance requests, then draft for requests: two kernel calls, whatever their number.

        Returns:
            A row per request in ``step.proposed``.

        Raises:
            UnknownRequestError: one is not open. InputError, TokenError: a field is wrong; names
                it. TooLargeError: a context would become too long. Nothing is changed then.
        """
        lease = self._leases.renewed(tenant, name, self._clock())
        check_rows(len(step.advanced), self.config.max_rows, "advanced")
        check_rows(len(step.proposed), self.config.max_rows, "proposed")
        with self._using(lease):
            gaining = lease.lookup(step.advanced, "advanced")
            asking = lease.lookup(step.proposed, "proposed")
            check_once(step.advanced, "advanced")
            check_once(step.proposed, "proposed")
            limits = limits_of(step)
            tokens, offsets = self._requests.check_gains(lease, gaining, step)
            if gaining:
                self._requests.advance(lease, gaining, tokens, offsets)
            return self._requests.propose(lease, asking, limits)

    def finish(
        self, tenant: Tenant, name: str, numbers: Sequence[int], *, discard: bool = False
    ) -> list[Acceptance]:
        """End requests; their outputs are remembered unless ``discard``. O(output tokens).

        Raises:
            UnknownRequestError, InputError: one is not open, or named twice. Nothing is changed.
        """
        lease = self._leases.renewed(tenant, name, self._clock())
        check_rows(len(numbers), self.config.max_rows, "requests")
        with self._using(lease):
            requests = lease.lookup(numbers, "requests")
            check_once(numbers, "requests")
            status = "cancelled" if discard else "ok"
            return [
                self._requests.finish(lease, request, keep=not discard, status=status)
                for request in requests
            ]

    def end_sessions(self, tenant: Tenant, name: str, sessions: Sequence[str]) -> None:
        """Forget what is held for sessions alone; unknown ones are ignored."""
        lease = self._leases.renewed(tenant, name, self._clock())
        check_rows(len(sessions), self.config.max_rows, "sessions")
        for session in sessions:
            check_name(session, "sessions")
        for session in sessions:
            self._requests.forget((lease.space, session))

    # -- the namespace -------------------------------------------------------------------------

    def ingest(self, tenant: Tenant, name: str, sequences: Sequence[Tokens]) -> int:
        """Remember finished sequences from elsewhere; returns their tokens. O(tokens).

        Raises:
            ConfigError: the service's method remembers nothing. TokenError, TooLargeError: as for
                :meth:`begin`; nothing is remembered then.
        """
        lease = self._leases.renewed(tenant, name, self._clock())
        self._check_running()
        check_rows(len(sequences), self.config.max_rows, "sequences")
        space = lease.space
        if space.index is None:
            raise ConfigError(
                f"ingest: method {space.proposer.name!r} remembers no sequences; run the service "
                "with method 'suffix'"
            )
        checked = []
        for row, sequence in enumerate(sequences):
            field = f"sequences[{row}]"
            tokens = as_token_array(sequence, space.model.vocab_size, field=field)
            check_context(len(tokens), self.config.max_context_tokens, field)
            checked.append(tokens)
        for tokens in checked:
            space.index.ingest(tokens)
        return sum(map(len, checked))

    def purge(self, tenant: Tenant, name: str) -> None:
        """Forget every sequence and idle session of the namespace and what was learned in it."""
        space = self._leases.renewed(tenant, name, self._clock()).space
        if space.index is not None:
            space.index.purge()
        if self._purged is not None:
            self._purged(space.key)

    def statistics(self, tenant: Tenant, name: str) -> DraftingStatistics:
        """Sizes and counts. O(sequences)."""
        lease = self._leases.renewed(tenant, name, self._clock())
        index = lease.space.index
        finished, acceptance = self._requests.totals.of(lease.space.key)
        return DraftingStatistics(
            index=index.statistics() if index is not None else None,
            open_leases=self._leases.open_leases(tenant.name),
            open_requests=self._leases.open_requests(tenant.name),
            open_sessions=self._requests.sessions.count(tenant.name),
            finished_requests=finished,
            acceptance=acceptance,
        )

    # -- running -------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Make sure that no later call waits for a compiler. The index has its own
        :func:`~suffixspec_index.warm_up.warm_up`."""
        ledger = AcceptanceLedger()
        rows = np.array([ledger.open(1)], np.int64)
        batch = DraftBatch.of([Draft.path([1], source=Source.GLOBAL)])
        ledger.drafted(rows, as_paths(batch))
        ledger.advanced(rows, batch.token_ids, batch.offsets)
        ledger.close(int(rows[0]))

    def may_stall(self, tenant: Tenant, name: str, rows: int) -> bool:
        """Whether a step of so many rows could wait for somebody or take milliseconds; O(1)."""
        lease = self._leases.find(tenant, name)
        if lease is None:
            return False
        index = lease.space.index
        return lease.lock.locked() or index is None or index.may_stall(rows)

    def expire(self) -> int:
        """End what ran out; returns how many leases and sessions. To be called now and then."""
        now = self._clock()
        leases = self._leases.expired(now)
        for lease in leases:
            self._end(lease, "abandoned")
        sessions = self._requests.sessions.idle(now)
        for key in sessions:
            self._requests.forget(key)
        return len(leases) + len(sessions)

    def stop(self) -> None:
        """Take no new leases and requests; what is open goes on."""
        self._stopping = True

    def close_all(self) -> None:
        """End everything."""
        self.stop()
        for lease in self._leases.all():
            self._end(lease, "abandoned")

    @property
    def open_leases(self) -> int:
        """Of all tenants."""
        return self._leases.open_leases()

    @property
    def open_requests(self) -> int:
        """Of all tenants."""
        return self._leases.open_requests()

    @property
    def open_sessions(self) -> int:
        """Of all tenants."""
        return self._requests.sessions.count()

    # -- inside --------------------------------------------------------------------------------

    @contextmanager
    def _using(self, lease: Lease) -> Iterator[None]:
        """Hold a lease that is still open."""
        with lease.lock:
            if lease.closed:
                raise unknown_lease()
            yield

    def _end(self, lease: Lease, status: str) -> int:
        """Close a lease; its requests end with ``status``. What they said so far is remembered: it
        was verified, and taking back what is shared already could mean building a tree anew."""
        with lease.lock:
            if lease.closed:
                return 0
            lease.closed = True
            requests = list(lease.requests.values())
            for request in requests:
                self._requests.finish(lease, request, keep=True, status=status)
        self._leases.remove(lease)
        return len(requests)

    def _check_running(self) -> None:
        if self._stopping:
            raise UnavailableError("the service is stopping; begin again with another replica")

    def _ttl(self, wanted: float | None) -> float:
        if wanted is None:
            return self.config.lease_seconds
        if not 0 < wanted <= self.config.max_lease_seconds:  # also refuses NaN
            raise InputError(
                f"ttl_seconds: must be above 0 and at most {self.config.max_lease_seconds:g}, got "
                f"{wanted!r}; leave it out for {self.config.lease_seconds:g}"
            )
        return wanted

    def _terms(self, lease: Lease) -> LeaseTerms:
        speculative = self._spaces.speculative
        return LeaseTerms(
            lease=lease.id,
            ttl_seconds=lease.ttl_seconds,
            max_draft_tokens=speculative.num_speculative_tokens,
            trees=speculative.draft_shape == "tree" and not lease.paths_only,
            max_requests=self.config.max_requests,
            max_rows=self.config.max_rows,
            max_context_tokens=self.config.max_context_tokens,
            namespace=lease.space.key.digest,
        )
