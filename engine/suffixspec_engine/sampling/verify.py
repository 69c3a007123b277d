"""Verification: which draft tokens are what the target model says, and what it says next.

Three methods (:data:`~.contract.Method`). All walk down the draft from the context's last token;
they differ in how the next token is chosen and in when a draft token counts as accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_engine.sampling.contract import GrammarMatcher, Method, RowState, Verdict
from suffixspec_engine.sampling.distribution import probabilities, weights
from suffixspec_engine.sampling.params import SamplingParams
from suffixspec_engine.sampling.randomness import draw, exponentials, uniforms
from suffixspec_engine.sampling.walk import Walk, check_tokens
from suffixspec_index.draft import Draft
from suffixspec_index.errors import ConfigError, InputError, SuffixSpecError

Doubles = NDArray[np.float64]


def verify(
    logits: Tensor,
    draft: Draft,
    state: RowState,
    params: SamplingParams,
    method: Method = "coupled",
    draft_probs: Tensor | None = None,
    grammar: GrammarMatcher | None = None,
) -> Verdict:
    """Decide one request's step; see :class:`~.contract.Verify`.

    Temperature 0 accepts what equals the argmax, whatever the method.

    Cost: O(vocab) per gained token (greedy: one argmax; sampled: about 0.3 ms for 49152 tokens);
    ``block``: O(vocab) per draft token.
    """
    _check_method(method)
    _check_shapes(logits, draft, draft_probs)
    return _verify(logits, draft, state, params, method, draft_probs, grammar, None)


def verify_batch(
    logits: Tensor,
    drafts: Sequence[Draft],
    states: Sequence[RowState],
    params: Sequence[SamplingParams],
    method: Method = "coupled",
    draft_probs: Mapping[int, Tensor] | None = None,
    grammars: Mapping[int, GrammarMatcher] | None = None,
) -> list[Verdict]:
    """Decide a step of many requests; see :class:`~.contract.VerifyBatch`.

    The verdicts are those of :func:`verify` for each request alone.
    """
    _check_method(method)
    if not len(drafts) == len(states) == len(params):
        raise InputError(
            f"drafts, states, params: {len(drafts)}, {len(states)} and {len(params)} entries; "
            "give one per request"
        )
    rows = sum(1 + len(draft) for draft in drafts)
    if logits.ndim != 2 or logits.shape[0] != rows:
        raise InputError(
            f"logits: shape {tuple(logits.shape)}, but the drafts need ({rows}, vocab); give "
            "1 + len(draft) rows per request"
        )
    probs = draft_probs or {}
    argmaxes = _device_argmaxes(logits, params)
    verdicts: list[Verdict] = []
    start = 0
    for r, draft in enumerate(drafts):
        end = start + 1 + len(draft)
        own = logits[start:end]
        known = None if argmaxes is None else argmaxes[start:end]
        grammar = None if grammars is None else grammars.get(r)
        try:
            _check_shapes(own, draft, probs.get(r))
            verdict = _verify(
                own, draft, states[r], params[r], method, probs.get(r), grammar, known
            )
        except SuffixSpecError as error:  # what is wrong with one request must not harm others
            verdict = Verdict((), (), finish_reason="error", stop_reason=str(error))
        verdicts.append(verdict)
        start = end
    return verdicts


def _device_argmaxes(logits: Tensor, params: Sequence[SamplingParams]) -> list[int] | None:
    """The argmax of every row in one call, where rows live on an accelerator and some request is
    greedy. On the host a row's argmax is so cheap that only the rows visited are looked at."""
    if logits.device.type == "cpu" or not any(p.greedy for p in params):
        return None
    best = logits.max(dim=-1)
    ids: list[int] = torch.where(best.values.isfinite(), best.indices, -1).tolist()
    return ids if min(ids, default=0) >= 0 else None  # else the slow way tells what is wrong


def _verify(
    logits: Tensor,
    draft: Draft,
    state: RowState,
    params: SamplingParams,
    method: Method,
    draft_probs: Tensor | None,
    grammar: GrammarMatcher | None,
    argmaxes: list[int] | None,
) -> Verdict:
    walk = Walk(logits, draft, state, params, grammar)
    try:
        if params.greedy:
            _match_greedy(walk, argmaxes)
        elif method == "coupled" or not len(draft):
            _match_draws(walk)
        elif method == "block" and draft.is_path:
            _verify_block(walk, draft_probs)
        else:
            _reject(walk, draft_probs)
    finally:
        walk.restore_grammar()
    return walk.verdict()


def _match_greedy(walk: Walk, argmaxes: list[int] | None) -> None:
    going = True
    while going:
        token = walk.greedy_token(argmaxes)
        going = walk.gain(token, walk.child_with(token))


def _match_draws(walk: Walk) -> None:
    """``coupled``: the target draws as without a draft; the draft token equal to it is accepted."""
    going = True
    while going:
        token = _draw_target(walk, weights(walk.processed(), walk.params))
        going = walk.gain(token, walk.child_with(token))


def _draw_target(walk: Walk, weight: NDArray[np.float32] | Doubles) -> int:
    return draw(weight, exponentials(walk.state.seed, walk.position, walk.vocab_size))


def _reject(walk: Walk, draft_probs: Tensor | None) -> None:
    """``standard``: rejection sampling. Siblings are tried in turn, each against what the ones
    before it left (Jeon et al., 2024: "Recursive speculative decoding", for siblings drawn without
    replacement; a deterministic draft is the case of a one-hot ``q``)."""
    going = True
    while going:
        target = probabilities(weights(walk.processed(), walk.params))
        child, rest = _first_accepted(walk, target, draft_probs)
        token = _draw_target(walk, rest) if child is None else walk.token_of(child)
        going = walk.gain(token, child)


def _first_accepted(
    walk: Walk, target: Doubles, draft_probs: Tensor | None
) -> tuple[int | None, Doubles]:
    """The child accepted, or ``None`` and the distribution that the target draws from then."""
    children = walk.children.get(walk.node, [])
    if not children:
        return None, target
    chances = uniforms(walk.state.seed, walk.position, len(children))
    rest = target
    tried: list[int] = []
    for chance, child in zip(chances, children, strict=True):
        token = walk.token_of(child)
        proposal = _proposal(draft_probs, child, tried)
        odds = 1.0 if proposal is None else float(proposal[token])
        # Strictly below p / q, multiplied out: a token of probability 0 is never accepted.
        if chance * odds < rest[token]:
            return child, rest
        rest = _residual(rest, proposal, token)
        tried.append(token)
    return None, rest


def _proposal(draft_probs: Tensor | None, node: int, without: Sequence[int]) -> Doubles | None:
    """The distribution a node was drawn from, siblings before it left out; ``None``: one-hot."""
    if draft_probs is None:
        return None
    proposal: Doubles = draft_probs[node].detach().cpu().double().numpy()
    if without:
        proposal = proposal.copy()
        proposal[list(without)] = 0.0
    total = float(proposal.sum())
    return proposal / total if total > 0 else None


def _residual(target: Doubles, proposal: Doubles | None, token: int) -> Doubles:
    """What is left of ``target`` after ``token``, drawn from ``proposal``, was rejected."""
    if proposal is None:
        rest = target.copy()
        rest[token] = 0.0
    else:
        rest = np.maximum(target - proposal, 0.0)
    total = float(rest.sum())
    # Nothing left means that target and proposal are equal up to rounding: rejection had
    # probability 0, and the target itself is the limit.
    return rest / total if total > 0 else target


def _verify_block(walk: Walk, draft_probs: Tensor | None) -> None:
    """``block``: Sun et al., "Block Verification Accelerates Speculative Decoding", algorithm 2.

    ``ratio`` is their p_i: the chance that the path up to token i would be kept as a whole. All
    draws are keyed by the step's start too: a position that this block rejects is drawn again by
    the next, and must not see the numbers that led to its rejection.
    """
    seed, start = walk.state.seed, walk.position
    targets, proposals = _path_distributions(walk, draft_probs)
    length = len(proposals)
    chances = uniforms(seed, start, length, start=start + 1)
    ratio, ratios, kept = 1.0, [1.0], 0
    for i, (token, proposal) in enumerate(proposals):
        odds = 1.0 if proposal is None else float(proposal[token])
        ratio = min(1.0, ratio * targets[i][token] / odds) if odds > 0 else 0.0
        ratios.append(ratio)
        keep = ratio
        if i + 1 < length:
            left = float(_left_over(targets[i + 1], ratio, *proposals[i + 1]).sum())
            keep = left / (left + 1.0 - ratio) if ratio < 1.0 else 1.0
        if chances[i] < keep:
            kept = i + 1
    rest = targets[kept]
    if kept < length:
        left_over = _left_over(rest, ratios[kept], *proposals[kept])
        rest = left_over if left_over.sum() > 0 else rest
    noise = exponentials(seed, start + kept, walk.vocab_size, start=start + 1)
    bonus = draw(rest, noise)
    walk.rewind()
    for child in range(kept):
        if not walk.gain(walk.token_of(child), child):
            return
    walk.gain(bonus, None)


def _path_distributions(
    walk: Walk, draft_probs: Tensor | None
) -> tuple[list[Doubles], list[tuple[int, Doubles | None]]]:
    """Target distributions along a path, and what each of its tokens was drawn from.

    The path ends after a token the grammar forbids: the target gives it probability 0, so nothing
    from it on can be kept, and there is no telling what the target would say after it.
    """
    targets = [probabilities(weights(walk.processed(), walk.params))]
    proposals: list[tuple[int, Doubles | None]] = []
    for child in range(len(walk.draft)):
        token = walk.token_of(child)
        proposals.append((token, _proposal(draft_probs, child, ())))
        if targets[-1][token] == 0.0 or not walk.descend(child):
            targets.append(targets[-1])  # never drawn from
            break
        targets.append(probabilities(weights(walk.processed(), walk.params)))
    return targets, proposals


def _left_over(target: Doubles, ratio: float, token: int, proposal: Doubles | None) -> Doubles:
    """``max(ratio * target - proposal, 0)``; its sum is their p_remain."""
    if proposal is not None:
        return np.maximum(ratio * target - proposal, 0.0)
    rest = ratio * target
    rest[token] = 0.0
    return rest


def _check_method(method: str) -> None:
    if method not in get_args(Method):
        raise ConfigError(
            f"rejection_sample_method: {method!r} is not one of {', '.join(get_args(Method))}"
        )


def _check_shapes(logits: Tensor, draft: Draft, draft_probs: Tensor | None) -> None:
    n = len(draft)
    if logits.ndim != 2 or logits.shape[0] != 1 + n:
        raise InputError(
            f"logits: shape {tuple(logits.shape)}, but a draft of {n} needs ({1 + n}, vocab)"
        )
    if draft_probs is not None and draft_probs.shape != (n, logits.shape[1]):
        raise InputError(
            f"draft_probs: shape {tuple(draft_probs.shape)}, but draft and logits need "
            f"({n}, {logits.shape[1]})"
        )
    if not check_tokens(draft, logits.shape[1]):
        raise InputError(
            f"draft: a token id is outside the vocabulary of {logits.shape[1]}; proposers must "
            "be told the vocabulary size"
        )
