"""Norms in one pass against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.gemma.modeling_gemma import GemmaRMSNorm  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402

from suffixspec_engine.packed_norm import PackedNorm, pack_norms  # noqa: E402


def llama_norm(dtype: Any, width: int = 48) -> Any:
    norm = LlamaRMSNorm(width, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width))
    return norm


def both(norm: Any, inputs: Any) -> tuple[Any, Any]:
    """What transformers' norm says, and what takes its place."""
    model = torch.nn.Sequential(norm)
    with torch.inference_mode():
        own = model(inputs)
        assert pack_norms(model) == 1
        assert type(model[0]) is PackedNorm
        return own, model(inputs)


@pytest.mark.parametrize("shape", [(1, 1, 48), (1, 7, 48), (2, 3, 5, 48), (48,), (0, 48)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_it_says_what_transformers_says(shape: tuple[int, ...], scale: float) -> None:
    torch.manual_seed(0)
    inputs = scale * torch.randn(shape)
    own, packed = both(llama_norm(torch.float32), inputs)
    torch.testing.assert_close(packed, own, rtol=2e-6, atol=1e-7)
    own, packed = both(llama_norm(torch.bfloat16), inputs.bfloat16())
    torch.testing.assert_close(packed, own, rtol=1e-2, atol=0)
    if packed.numel():
        assert (packed == own).float().mean() > 0.95  # the same but where float32 rounds apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_so(dtype: Any) -> None:
    inputs = torch.randn(3, 48).to(dtype)
    inputs[0, 5], inputs[1, 7], inputs[2, 0] = float("nan"), float("inf"), -3e38
    own, packed = both(llama_norm(dtype), inputs)
    assert torch.equal(packed.isnan(), own.isnan())
    assert packed[0].isnan().all()


def test_other_inputs_go_the_way_they_went() -> None:
    torch.manual_seed(0)
    strided = torch.randn(48, 6).T
    own, packed = both(llama_norm(torch.float32), strided)
    assert torch.equal(packed, own)
    own, packed = both(llama_norm(torch.float32), torch.randn(4, 48).double())
    assert packed.dtype == own.dtype
    assert torch.equal(packed, own)
    own, packed = both(llama_norm(torch.float32), torch.randn(2000, 48))
    torch.testing.assert_close(packed, own, rtol=2e-6, atol=1e-7)


class ScaledRMSNorm(LlamaRMSNorm):
    """Has what the others have, and does something else."""

    def forward(self, hidden_states: Any) -> Any:
        return 1.01 * super().forward(hidden_states)


def test_norms_that_are_not_what_their_name_says_stay() -> None:
    norms = [GemmaRMSNorm(48), ScaledRMSNorm(48), llama_norm(torch.float64), torch.nn.RMSNorm(48)]
    model = torch.nn.Sequential(*norms, llama_norm(torch.bfloat16, 47))
    assert pack_norms(model) == 0
    assert [*model][:4] == norms
