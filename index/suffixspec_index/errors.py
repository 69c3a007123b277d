"""The error tree of suffixspec. Everything the project raises on purpose descends from one root.

```
SuffixSpecError
├── ConfigError (ValueError)          a setting is missing, unknown or out of range
├── InputError (ValueError)           data given to a call is wrong
│   ├── TokenError                    a token id is outside the vocabulary or not an integer
│   ├── TraceError                    a trace file cannot be read; carries path and line
│   │   ├── TraceFormatError          the format is unknown, or not the one that was forced
│   │   └── NoCompletionsError        the format holds no model output, so nothing can be replayed
│   ├── TokenizerError                a tokenizer cannot be found, read or used
│   ├── TooLargeError                 more was sent than the receiver takes
│   └── OutOfStepError                both sides hold different contexts; send the whole one
├── CallerError                       who asks may not
│   ├── AuthenticationError           no key was given, or nobody has this key
│   └── ForbiddenError                the caller is known, and this is not for them
├── LookupFailure (KeyError)          something was named that does not exist
│   ├── UnknownSessionError
│   ├── UnknownRequestError
│   ├── UnknownNamespaceError
│   └── UnknownLeaseError
├── SnapshotError                     a stored index cannot be loaded
│   ├── SnapshotFormatError           it is not one of our files, or of another version
│   └── SnapshotCorruptError          it is truncated or its checksum is wrong
├── GenerationError                   a request ended before its text did: a step or a server failed
├── LogError                          the log of sequences cannot do what was asked
│   ├── LogUnavailableError           it cannot be reached now; later it may
│   ├── LogRefusedError               it answers and refuses: full, read-only, wrong password, taken
│   ├── LogFormatError                it is not one of ours, or of another version
│   ├── LogCorruptError               it is damaged; whatever is intact can still be read
│   └── LogClosedError                it was closed
├── CapacityError                     a hard limit was reached; nothing was changed
│   ├── LimitExceededError            a limit of the caller's own; carries when to come again
│   └── UnavailableError              the service starts or stops; carries when to come again
├── DeadlineError (TimeoutError)      an answer did not come in time
├── IntegrityError                    an internal invariant does not hold: a bug, please report it
└── MissingDependencyError (ImportError)  an optional package is needed; names the extra to install
```

A message names the field, the value and the remedy. Errors are raised before anything is changed.
"""

from __future__ import annotations

from pathlib import Path


class SuffixSpecError(Exception):
    """Root of every error that suffixspec raises on purpose."""


class ConfigError(SuffixSpecError, ValueError):
    """A setting is missing, unknown or out of range."""


class InputError(SuffixSpecError, ValueError):
    """Data given to a call is wrong."""


class TokenError(InputError):
    """A token id is outside the vocabulary or not an integer."""


class TraceError(InputError):
    """A trace file cannot be read.

    Attributes: ``path`` (the file, or ``None`` for standard input), ``line`` (1-based, or ``None``
    where the file is one document), ``reason`` (the message without the place).
    """

    def __init__(
        self, reason: str, *, path: Path | str | None = None, line: int | None = None
    ) -> None:
        place = "" if path is None else str(path)
        if line is not None:
            place = f"{place}:{line}" if place else f"line {line}"
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.path = path
        self.line = line


class TraceFormatError(TraceError):
    """The format of a trace is unknown, or is not the one that was forced."""


class NoCompletionsError(TraceError):
    """The format holds no model output, so there is nothing to replay."""


class TokenizerError(InputError):
    """A tokenizer cannot be found, read or used."""


class TooLargeError(InputError):
    """More was sent than the receiver takes."""


class OutOfStepError(InputError):
    """Caller and service hold different contexts of a session. Sending the whole one helps."""


class CallerError(SuffixSpecError):
    """Who asks may not."""


class AuthenticationError(CallerError):
    """No key was given, or nobody has this key."""


class ForbiddenError(CallerError):
    """The caller is known, and this is not for them."""


class LookupFailure(SuffixSpecError, KeyError):  # noqa: N818 - "LookupError" is a builtin
    """Something was named that does not exist."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownSessionError(LookupFailure):
    """No session of this name is open."""


class UnknownRequestError(LookupFailure):
    """No request has this handle: it never existed or is finished."""


class UnknownNamespaceError(LookupFailure):
    """No namespace has this key."""


class UnknownLeaseError(LookupFailure):
    """No lease of this name is open: it never existed, was closed, or ran out."""


class SnapshotError(SuffixSpecError):
    """A stored index cannot be loaded."""


class SnapshotFormatError(SnapshotError):
    """The file is not one of ours, or is of another version."""


class SnapshotCorruptError(SnapshotError):
    """The file is truncated or its checksum is wrong."""


class GenerationError(SuffixSpecError):
    """A request ended before its text did: a step or a server failed, or the engine was closed."""


class LogError(SuffixSpecError):
    """The log of sequences cannot do what was asked."""


class LogUnavailableError(LogError):
    """The log cannot be reached now. Trying again later may help."""


class LogRefusedError(LogError):
    """The log answers and refuses: it is full, read-only, taken, or does not know the password.
    Trying again helps only after somebody did something about it."""


class LogFormatError(LogError):
    """What is stored is not one of our logs, or is of another version."""


class LogCorruptError(LogError):
    """What is stored is damaged. Whatever is intact can still be read."""


class LogClosedError(LogError):
    """The log was closed."""


class CapacityError(SuffixSpecError):
    """A hard limit was reached; nothing was changed."""


class LimitExceededError(CapacityError):
    """A limit of the caller's own was reached. ``retry_after``: seconds until it may be free."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(CapacityError):
    """The service starts or stops. ``retry_after``: seconds until it is worth another try."""

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(SuffixSpecError, TimeoutError):
    """An answer did not come in time. Whether what was asked was done is not known."""


class IntegrityError(SuffixSpecError):
    """An internal invariant does not hold. This is a bug: please report it."""


class MissingDependencyError(SuffixSpecError, ImportError):
    """An optional package is needed; the message names the extra to install."""
