"""What tells two tokenizers apart: token ids only mean the same where the fingerprints are equal.

It is part of every namespace's key (:class:`~suffixspec_index.namespaces.NamespaceKey`), so that a
replica with another tokenizer can never read what it would misunderstand.
"""

from __future__ import annotations

import hashlib
import json
from typing import Protocol


class BackendTokenizer(Protocol):
    """As much of ``tokenizers.Tokenizer`` as is needed here."""

    def to_str(self) -> str:
        """Its description as JSON."""

    def get_vocab(self, with_added_tokens: bool = ...) -> dict[str, int]:
        """Ids by token."""


def tokenizer_fingerprint(backend: BackendTokenizer) -> str:
    """SHA-256 (64 hex digits) over the vocabulary in id order and the merges in rank order.

    Every item is prefixed with its length, so no two vocabularies hash the same bytes. Tokenizers
    that differ in normalisation or template only have the same fingerprint: their ids mean the
    same. O(vocabulary).
    """
    digest = hashlib.sha256()

    def add(item: str) -> None:
        raw = item.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)

    vocab = backend.get_vocab(with_added_tokens=True)
    for token, i in sorted(vocab.items(), key=lambda pair: (pair[1], pair[0])):
        add(f"{i}:{token}")
    merges = json.loads(backend.to_str())["model"].get("merges") or []
    add(str(len(merges)))
    for merge in merges:
        for part in merge.split(" ", 1) if isinstance(merge, str) else merge:
            add(part)
    return digest.hexdigest()
