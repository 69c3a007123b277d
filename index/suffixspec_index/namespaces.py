"""Namespaces: who may share drafts, and an index for each that shares with nobody else."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from numpy.typing import ArrayLike

from suffixspec_index.errors import CapacityError, ConfigError, InputError, UnknownNamespaceError
from suffixspec_index.index import IndexStatistics, SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.tokens import as_forbidden_array, as_vocab_size


@dataclass(frozen=True, slots=True)
class NamespaceKey:
    """What a namespace is: two requests share drafts only if all four agree.

    Attributes:
        tenant: from the authenticated caller, never from a request's body.
        model: the target model.
        tokenizer: a fingerprint of the tokenizer (ids of another one mean something else).
        adapter: the LoRA adapter or the like; empty: none.

    Raises:
        InputError: a field is not a text.
    """

    tenant: str
    model: str
    tokenizer: str
    adapter: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str):
                raise InputError(f"{field.name}: must be a text, got {value!r}")

    @property
    def digest(self) -> str:
        """32 hex digits that stand for the key in file names and streams.

        Fields are hashed with their lengths, so that ``("ab", "c")`` and ``("a", "bc")`` differ.
        """
        digest = hashlib.blake2b(digest_size=16, person=b"suffixspec-ns")
        for field in fields(self):
            value = getattr(self, field.name).encode("utf-8", "surrogatepass")
            digest.update(len(value).to_bytes(8, "little"))
            digest.update(value)
        return digest.hexdigest()

    def __str__(self) -> str:
        named = f"{self.tenant}/{self.model}/{self.tokenizer}"
        return f"{named}/{self.adapter}" if self.adapter else named


class Namespaces:
    """The indexes of a process, one per key. Thread-safe; each index has a lock of its own, so
    namespaces never wait for each other.

    Args:
        config: the settings of every index. Its ``max_bytes`` is the budget of each namespace,
            unless :meth:`get_or_create` is given another.
        forbidden: token ids that no draft holds.
        max_namespaces: how many there may be; ``None``: any number. (Each takes at least 0.8 MB.)

    Raises:
        ConfigError, TokenError: an argument is wrong.
    """

    def __init__(
        self,
        config: IndexConfig | None = None,
        *,
        forbidden: ArrayLike = (),
        max_namespaces: int | None = None,
    ) -> None:
        if max_namespaces is not None and max_namespaces < 1:
            raise ConfigError(f"max_namespaces: must be at least 1, got {max_namespaces!r}")
        self.config = config or IndexConfig()
        self.max_namespaces = max_namespaces
        self._forbidden = as_forbidden_array(forbidden, field="forbidden")
        self._lock = threading.Lock()
        self._indexes: dict[NamespaceKey, SuffixIndex] = {}

    def get(self, key: NamespaceKey) -> SuffixIndex:
        """The index of a namespace.

        Raises:
            UnknownNamespaceError: there is none.
        """
        with self._lock:
            return self._known(key)

    def get_or_create(
        self,
        key: NamespaceKey,
        *,
        vocab_size: int | None = None,
        max_bytes: int | None = None,
        create: Callable[[IndexConfig], SuffixIndex] | None = None,
    ) -> SuffixIndex:
        """The index of a namespace, made at the first call.

        Args:
            key: the namespace.
            vocab_size: of its model; ``None``: unknown.
            max_bytes: its byte budget; ``None``: the common one.
            create: makes the index from its settings, e.g. from a snapshot; by default an empty
                one. Called at most once per namespace, and other namespaces wait meanwhile.

        Raises:
            InputError: the key is not one, or it has an index of another vocabulary size.
            ConfigError: a setting is out of range.
            CapacityError: there are ``max_namespaces`` already.
        """
        if not isinstance(key, NamespaceKey):
            raise InputError(f"key: must be a NamespaceKey, got {key!r}")
        size = as_vocab_size(vocab_size)
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                if size is not None and index.vocab_size not in (None, size):
                    raise InputError(
                        f"vocab_size: namespace {key} has {index.vocab_size} ids, got {size}; "
                        "another vocabulary needs another tokenizer fingerprint"
                    )
                return index
            if self.max_namespaces is not None and len(self._indexes) >= self.max_namespaces:
                raise CapacityError(
                    f"max_namespaces: there are {len(self._indexes)} already, which is the most; "
                    "drop one or allow more"
                )
            config = self.config
            if max_bytes is not None:
                config = replace(config, max_bytes=max_bytes)
            if create is not None:
                index = create(config)
            else:
                index = SuffixIndex(config, vocab_size=size, forbidden=self._forbidden)
            self._indexes[key] = index
            return index

    def purge(self, key: NamespaceKey) -> None:
        """Forget everything of a namespace, which stays.

        Raises:
            UnknownNamespaceError: there is none.
        """
        self.get(key).purge()

    def drop(self, key: NamespaceKey) -> None:
        """Forget a namespace. Requests that still run in its index end as usual; its memory goes
        with the last of them.

        Raises:
            UnknownNamespaceError: there is none.
        """
        with self._lock:
            self._known(key)
            del self._indexes[key]

    def statistics(self) -> dict[NamespaceKey, IndexStatistics]:
        """Sizes of every namespace, in order of creation."""
        with self._lock:
            indexes = list(self._indexes.items())
        return {key: index.statistics() for key, index in indexes}

    @property
    def nbytes(self) -> int:
        """Allocated bytes of all namespaces."""
        with self._lock:
            return sum(index.nbytes for index in self._indexes.values())

    def _known(self, key: NamespaceKey) -> SuffixIndex:
        try:
            return self._indexes[key]
        except (KeyError, TypeError):
            raise UnknownNamespaceError(
                f"namespace: {key} has no index; get_or_create makes one"
            ) from None

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[NamespaceKey]:
        with self._lock:
            return iter(list(self._indexes))
