"""Text of unknown origin made safe to look at.

A trace may hold anything. HTML is escaped where it is written; what is left is text that lies
about itself: control characters, and characters that reverse or hide what stands around them.
They are shown as what they are.
"""

from __future__ import annotations

import re

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES[0x7F] = "\u2421"
# Bidirectional controls, zero-width and other invisible format characters, C1 controls,
# separators that browsers break lines at, and unpaired surrogates.
_HIDDEN = re.compile(
    "[\u0080-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]|[\U000e0000-\U000e0fff]"
)


def visible_text(text: str) -> str:
    """``text`` with every control and hidden character replaced by a visible stand-in. O(n)."""
    return _HIDDEN.sub(_named, text.translate(_PICTURES))


def _named(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match.group()):04X}⟩"
