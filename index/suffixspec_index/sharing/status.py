"""What readiness and metrics are told about sharing."""

from __future__ import annotations

from dataclasses import dataclass

from suffixspec_index.namespaces import NamespaceKey


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """How one namespace's sharing goes. Counts are of records since the start.

    Attributes:
        key: the namespace.
        caught_up: everything that was in the log when it was attached has been read.
        progress: of the warm start, 0 to 1; 1 once it caught up.
        behind: records in the log that are not read yet, when that was last looked at.
        lag_seconds: how long ago the last look found nothing more to read; 0 right after it did.
        applied, applied_tokens: taken in from others.
        duplicates: left out because they were known.
        orphans: chunks whose beginning is missing.
        missed: times that the log's budget had removed records before they were read.
        resets: times that the log was found emptied or replaced.
        damaged: damaged frames that were left out.
        purges: marks followed.
        unsent, unsent_bytes: own records that wait to be sent.
        sent: own records that were acknowledged.
        resent: own records that were sent again because the log had lost them.
        dropped, dropped_tokens: own records that the full spool lost.
        error: why the last attempt with this namespace failed; ``None``: it did not.
    """

    key: NamespaceKey
    caught_up: bool
    progress: float
    behind: int
    lag_seconds: float
    applied: int
    applied_tokens: int
    duplicates: int
    orphans: int
    missed: int
    resets: int
    damaged: int
    purges: int
    unsent: int
    unsent_bytes: int
    sent: int
    resent: int
    dropped: int
    dropped_tokens: int
    error: str | None


@dataclass(frozen=True, slots=True)
class SharingStatus:
    """How sharing goes, of all namespaces.

    Attributes:
        url: of the log, without passwords.
        connected: the last attempt to read and the last to write worked.
        error: why one of them did not; ``None``: both did.
        spool_bytes: of all that waits to be sent.
        namespaces: each by itself.
    """

    url: str
    connected: bool
    error: str | None
    spool_bytes: int
    namespaces: tuple[NamespaceStatus, ...]

    @property
    def caught_up(self) -> bool:
        """Whether every namespace is warm."""
        return all(one.caught_up for one in self.namespaces)

    @property
    def progress(self) -> float:
        """Of all warm starts together, 0 to 1."""
        if not self.namespaces:
            return 1.0
        return sum(one.progress for one in self.namespaces) / len(self.namespaces)
