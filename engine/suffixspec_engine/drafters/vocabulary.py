"""How a draft model's tokens correspond to the target's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from suffixspec_index.errors import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class VocabularyMap:
    """Between the ids of a target and of a draft model.

    Tokens correspond where they spell the same bytes (special tokens: have the same name). Of one
    and the same tokenizer every id does, whatever padding the models' outputs have.

    Attributes:
        identical: the tokenizers are the same, so ids need no translation.
        to_target: ``(draft vocab,)`` int64, the target's id of each draft id, -1 where it has none.

    Raises:
        ConfigError: the tokenizers differ and ``heterogeneous`` is false, or share no token.
    """

    def __init__(
        self,
        target: Tokenizer,
        draft: Tokenizer,
        *,
        target_size: int,
        draft_size: int,
        heterogeneous: bool = False,
    ) -> None:
        target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
        self.identical = target_ids == draft_ids
        if not self.identical and not heterogeneous:
            raise ConfigError(_difference(target_ids, draft_ids))
        self._target, self._draft = target, draft
        self.to_target = np.full(draft_size, -1, np.int64)
        if self.identical:
            shared = np.fromiter(draft_ids.values(), np.int64)
            shared = shared[(shared < draft_size) & (shared < target_size)]
            self.to_target[shared] = shared
            self._from_target: dict[int, int] = {}
            return
        known = token_keys(target)
        for key, draft_id in token_keys(draft).items():
            target_id = known.get(key, -1)
            if draft_id < draft_size and target_id < target_size:
                self.to_target[draft_id] = target_id
        shared = np.flatnonzero(self.to_target >= 0)
        if not len(shared):
            raise ConfigError(
                "model: its tokenizer shares no token with the target's; use another draft model"
            )
        self._from_target = dict(zip(self.to_target[shared].tolist(), shared.tolist(), strict=True))
        self._spell = lru_cache(maxsize=65536)(self._spelled)

    @property
    def shared(self) -> NDArray[np.int64]:
        """The draft ids that the target has too, sorted."""
        return np.flatnonzero(self.to_target >= 0)

    def to_draft(self, token_ids: Sequence[int]) -> list[int]:
        """The target's tokens as the draft model reads them.

        A token it lacks is spelled with its own, token by token, so that what was translated once
        never changes: the draft model's cache stays right, and special tokens come where the target
        has them and nowhere else. What cannot be spelled is left out; that costs accepted tokens,
        never text.
        """
        if self.identical:
            return list(token_ids)
        ids: list[int] = []
        for token_id in token_ids:
            direct = self._from_target.get(token_id)
            if direct is None:
                ids.extend(self._spell(token_id))
            else:
                ids.append(direct)
        return ids

    def _spelled(self, token_id: int) -> tuple[int, ...]:
        text = self._target.decode([token_id], skip_special_tokens=True)
        if not text or "\ufffd" in text:  # a special token, or a piece of a character
            return ()
        return tuple(self._draft.encode(text, add_special_tokens=False).ids)


def token_keys(tokenizer: Tokenizer) -> dict[bytes, int]:
    """What each token spells -> its id (the lowest, where several spell the same)."""
    config = json.loads(tokenizer.to_str())
    special = {t["content"] for t in config["added_tokens"] if t["special"]}
    byte_level = "ByteLevel" in json.dumps([config["decoder"], config["pre_tokenizer"]])
    keys: dict[bytes, int] = {}
    for text, token_id in sorted(tokenizer.get_vocab().items(), key=lambda item: -item[1]):
        if text in special:
            keys[b"\0special:" + text.encode()] = token_id
        else:
            keys[_bytes_of(text, byte_level)] = token_id
    return keys


def _bytes_of(text: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _byte_level_table()
        if all(char in table for char in text):
            return bytes(table[char] for char in text)
        return text.encode()  # an added token, which stands for itself
    single = _BYTE_TOKEN.fullmatch(text)  # SentencePiece's byte fallback
    if single:
        return bytes([int(single[1], 16)])
    return text.replace("\u2581", " ").encode()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def _difference(target: dict[str, int], draft: dict[str, int]) -> str:
    differing = sorted(
        text for text in target.keys() | draft.keys() if target.get(text) != draft.get(text)
    )
    example = differing[0]
    return (
        f"model: the draft model's tokenizer is not the target's: {len(differing)} tokens differ, "
        f"for example {example!r} (target id {target.get(example)}, draft id "
        f"{draft.get(example)}); use a draft model with the same tokenizer, or set "
        "use_heterogeneous_vocab"
    )
