"""The workload of the step rows: requests that advance by three tokens and ask for a draft.

A global tree holds recorded outputs. 64 requests with prompts of up to 2,000 tokens run side by
side. Where they *match*, each says again what is in the tree. Where they do not, prompts and
outputs are the same tokens in random order, so that hardly two in a row were ever seen together.

One step is what a serving loop does for one request: hand over the tokens gained (which makes them
visible to this and to other requests), then propose. The peer has no batch call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import ours, peer
from benchmarks.clock import clock
from benchmarks.data import Corpus, Tokens
from benchmarks.ours import OurSettings
from benchmarks.peer import PeerSettings

ROWS = 64
STEPS = 30
GAINED = 3
PROMPT = 2_000


@dataclass(frozen=True, slots=True)
class Workload:
    """What is indexed, and what each request says. ``outputs`` is ``(ROWS, STEPS * GAINED)``."""

    indexed: list[Tokens]
    prompts: list[Tokens]
    outputs: NDArray[np.int32]


def workload(corpus: Corpus, *, matching: bool, per_source: int, seed: int = 0) -> Workload:
    """Draw requests from all sources alike."""
    rng = np.random.default_rng(seed)
    need = STEPS * GAINED
    indexed: list[Tokens] = []
    candidates: list[tuple[Tokens, Tokens]] = []
    for source in corpus.sources:
        turns = [turn for session in corpus.first(source, per_source) for turn in session]
        indexed += [output for _, output in turns]
        long = [turn for turn in turns if len(turn[1]) >= need]
        share = -(-ROWS // len(corpus.sources))
        chosen = rng.choice(len(long), min(share, len(long)), replace=False)
        candidates += [long[i] for i in chosen]
    picked = [candidates[i % len(candidates)] for i in range(ROWS)]
    prompts = [np.ascontiguousarray(prompt[-PROMPT:]) for prompt, _ in picked]
    outputs = np.stack([output[:need] for _, output in picked])
    if not matching:
        prompts = [rng.permutation(prompt) for prompt in prompts]
        outputs = rng.permutation(outputs.ravel()).reshape(outputs.shape)
    return Workload(indexed, prompts, np.ascontiguousarray(outputs))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds per step of one request; ``propose`` is the part of ``mean`` that proposes."""

    mean: float
    p99: float
    propose: float


def _times(marks: Sequence[tuple[float, float, float]], batch: int = 1) -> StepTimes:
    """From (start, after advancing, after proposing) of every call."""
    began, advanced, done = np.array(marks).T / batch
    whole = done - began
    return StepTimes(
        float(whole.mean()), float(np.percentile(whole, 99)), float((done - advanced).mean())
    )


def peer_steps(work: Workload, settings: PeerSettings) -> StepTimes:
    """The peer: one call of each kind per request and step."""
    cache = peer.new_cache(settings.depth)
    for number, sequence in enumerate(work.indexed):
        name = -1 - number
        cache.start_request(name, np.empty(0, np.int32))
        cache.add_active_response(name, sequence)
        cache.stop_request(name)
    contexts = [np.concatenate(pair) for pair in zip(work.prompts, work.outputs, strict=True)]
    for row, prompt in enumerate(work.prompts):
        cache.start_request(row, prompt)
    marks = []
    for step in range(STEPS):
        for row, context in enumerate(contexts):
            new = work.outputs[row, step * GAINED : (step + 1) * GAINED]
            end = len(work.prompts[row]) + (step + 1) * GAINED
            known = context[max(0, end - settings.depth) : end]
            began = clock()
            cache.add_active_response(row, new)
            advanced = clock()
            peer.speculate(cache, row, known, settings)
            marks.append((began, advanced, clock()))
    return _times(marks)


def our_steps(work: Workload, settings: OurSettings, *, batch: int = ROWS) -> StepTimes:
    """Ours: one call of each kind per batch and step; a request's share of the call's time."""
    proposer = ours.new_proposer(settings)
    for number, sequence in enumerate(work.indexed):
        name = f"indexed-{number}"
        request = proposer.begin(name, sequence[:1])
        proposer.advance(request, sequence[1:])
        proposer.finish(request)
        proposer.end_session(name)
    requests = [proposer.begin(f"row-{row}", prompt) for row, prompt in enumerate(work.prompts)]
    offsets = np.arange(batch + 1) * GAINED
    marks = []
    for step in range(STEPS):
        for first in range(0, ROWS, batch):
            rows = requests[first : first + batch]
            span = work.outputs[first : first + batch, step * GAINED : (step + 1) * GAINED]
            new = np.ascontiguousarray(span).ravel()
            began = clock()
            proposer.advance_batch(rows, new, offsets)
            advanced = clock()
            proposer.propose_batch(rows)
            marks.append((began, advanced, clock()))
    return _times(marks, batch)
