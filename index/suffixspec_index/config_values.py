"""Reading single configuration values: one place for types, bounds and the words of the error.

Values come from JSON, TOML, environment variables and Python, so numbers may arrive as text
(``"5"``) or as integral floats (``5.0``). Both are taken, as vLLM's pydantic configuration takes
them; booleans are not numbers here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

from suffixspec_index.errors import ConfigError

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or ``None`` where nothing is similar. O(known)."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist: names the nearest one, else lists all."""
    names = sorted(known)
    close = nearest(name, names)
    remedy = f"did you mean {close!r}?" if close else f"known are {', '.join(names)}"
    return ConfigError(f"{name}: unknown {kind}; {remedy}")


def as_integer(
    value: object, key: str, *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """An integer within bounds (inclusive).

    Raises:
        ConfigError: not an integer, or outside the bounds.
    """
    number = _parse_integer(value)
    if number is None:
        raise ConfigError(f"{key}: must be an integer, got {value!r}")
    _check_bounds(number, key, minimum, maximum)
    return number


def as_real(
    value: object, key: str, *, minimum: float | None = None, maximum: float | None = None
) -> float:
    """A finite number within bounds (inclusive).

    Raises:
        ConfigError: not a finite number, or outside the bounds.
    """
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{key}: must be a finite number, got {value!r}")
    _check_bounds(number, key, minimum, maximum)
    return number


def as_boolean(value: object, key: str) -> bool:
    """A boolean, or one of the words true/false, yes/no, on/off, 1/0.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(f"{key}: must be true or false, got {value!r}")


def as_text(value: object, key: str) -> str:
    """A text that is not empty.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key}: must be a text that is not empty, got {value!r}")
    return value


def as_choice(value: object, key: str, choices: Sequence[str]) -> str:
    """One of the choices.

    Raises:
        ConfigError: anything else; names the nearest choice.
    """
    if isinstance(value, str) and value in choices:
        return value
    close = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {close!r}?" if close else ""
    raise ConfigError(f"{key}: must be one of {', '.join(choices)}, got {value!r}{hint}")


def _parse_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return None


def _check_bounds(number: float, key: str, minimum: float | None, maximum: float | None) -> None:
    if (minimum is None or number >= minimum) and (maximum is None or number <= maximum):
        return
    if maximum is None:
        raise ConfigError(f"{key}: must be at least {minimum}, got {number}")
    if minimum is None:
        raise ConfigError(f"{key}: must be at most {maximum}, got {number}")
    raise ConfigError(f"{key}: must be between {minimum} and {maximum}, got {number}")
