"""Which models are taken, which are refused and why, and that those taken say what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from suffixspec_engine import models  # noqa: E402
from suffixspec_engine.engine import Engine  # noqa: E402
from suffixspec_engine.model_checks import check_against_own_attention  # noqa: E402
from suffixspec_engine.models import load_model  # noqa: E402
from suffixspec_engine.packed_linear import (  # noqa: E402
    PackedLinear,
    PackedPart,
    pack_linears,
)
from suffixspec_engine.sampling import SamplingParams  # noqa: E402
from suffixspec_index.errors import ConfigError  # noqa: E402
from tests.engine.conftest import write_tiny_llama  # noqa: E402
from tests.engine.said import random_prompt, said  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def save(folder: Path, config: Any) -> Path:
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(**SMALL, sliding_window=8, initializer_range=0.3, head_dim=8),
        transformers.Qwen2Config(
            **SMALL,
            sliding_window=8,
            use_sliding_window=True,
            max_window_layers=1,
            initializer_range=0.3,
        ),
        transformers.Qwen3Config(**SMALL, initializer_range=0.3, head_dim=8),
        transformers.GPTNeoXConfig(
            **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, initializer_range=0.3
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_say_what_generate_says(tmp_path: Path, config: Any) -> None:
    """Sliding windows too: shorter here than prompt and draft trees."""
    folder = save(tmp_path, config)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompts = [random_prompt(seed, 30, 128) for seed in range(3)]
    speculative = {"method": "suffix", "draft_shape": "tree", "suffix_decoding_min_token_prob": 0}
    with Engine(load_model(folder), speculative=speculative) as engine:
        for _ in range(2):
            outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=20))
            for prompt, output in zip(prompts, outputs, strict=True):
                assert output.token_ids.tolist() == said(reference, prompt, 20)
        assert engine.metrics.counts.accepted


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            transformers.MambaConfig(
                vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4
            ),
            "recurrent state",
        ),
        (transformers.Gemma2Config(**SMALL, head_dim=8), "needs softcap"),
        (
            transformers.LlamaConfig(
                **SMALL,
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            ),
            "depend on its neighbours",
        ),
        (transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2), "attention"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_what_cannot_be_verified_is_refused(tmp_path: Path, config: Any, reason: str) -> None:
    folder = save(tmp_path, config)
    with pytest.raises(ConfigError, match=f"cannot be verified.*{reason}"):
        load_model(folder)


def test_a_model_that_says_something_else_is_found_out(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(tiny_llama)
    from suffixspec_engine.attention import PackedRow

    monkeypatch.setattr(PackedRow, "mask", lambda *_: None)
    with pytest.raises(ConfigError, match="keeps state or masks"):
        check_against_own_attention(target.module, target.shapes, target.vocab_size, "tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int4"}, "dtype: 'int4'"),
        ({"device": "abacus"}, "device: 'abacus'"),
        ({"max_model_len": 1}, "max_model_len: 1"),
        ({"max_model_len": 1000}, "at most 512"),
    ],
)
def test_wrong_options(tiny_llama: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(tiny_llama, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_no_cuda(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="torch sees no CUDA"):
        load_model(tiny_llama, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; torch sees none here")
def test_cuda_says_what_the_cpu_says(tiny_llama: Path, reference: Any) -> None:
    prompts = [random_prompt(seed, 30) for seed in range(4)]
    target = load_model(tiny_llama, device="cuda", dtype="float32")
    with Engine(target, speculative={"method": "suffix", "draft_shape": "tree"}) as engine:
        outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=20))
    assert [o.token_ids.tolist() for o in outputs] == [said(reference, p, 20) for p in prompts]


def test_places_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(tmp_path / "absent")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"not a \.gguf file"):
        load_model(tmp_path / "weights.bin")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="GGUF"):
        load_model(tmp_path / "broken.gguf", cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_bfloat16_and_a_bound_on_the_length(tiny_llama: Path) -> None:
    target = load_model(tiny_llama, dtype="bfloat16", max_model_len=100)
    assert (target.dtype, target.max_model_len) == (torch.bfloat16, 100)
    with Engine(target, speculative={"method": "suffix", "draft_shape": "tree"}) as engine:
        output = engine.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=8))[0]
    assert len(output.token_ids) == 8


def test_packed_linear_layers_compute_the_same() -> None:
    torch.manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for bias in (True, False):
            linear = torch.nn.Linear(40, 24, bias=bias, dtype=dtype)
            packed = PackedLinear(linear)
            for rows in (1, 3, 17):
                inputs = torch.randn(2, rows, 40, dtype=dtype)
                torch.testing.assert_close(
                    packed(inputs), linear(inputs), rtol=tolerance, atol=tolerance
                )


def test_models_that_look_at_their_weights_keep_them() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    assert pack_linears(model, lambda: model[0].weight) == 0
    assert type(model[0]) is torch.nn.Linear
    assert pack_linears(model, lambda: model(torch.ones(1, 4))) == 2


class Attention(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Three layers that read the same input, one that reads another, and a pair."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.q = torch.nn.Linear(24, 16, bias=bias)
        self.k, self.v = torch.nn.Linear(24, 8, bias=bias), torch.nn.Linear(24, 8, bias=bias)
        self.o = torch.nn.Linear(16, 24)
        self.gate, self.up = torch.nn.Linear(24, 8), torch.nn.Linear(24, 8)

    def forward(self, inputs: Any) -> Any:
        mixed = self.q(inputs) * torch.cat([self.k(inputs), self.v(inputs)], dim=-1)
        hidden = self.o(mixed)
        return self.gate(hidden) * self.up(hidden)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_with_the_same_input_are_computed_together(bias: bool) -> None:
    torch.manual_seed(0)
    model, inputs = Attention(bias=bias), torch.randn(3, 5, 24)
    with torch.inference_mode():
        expected = model(inputs)
        assert pack_linears(model, lambda: model(inputs)) == 6
        kinds = [type(module) for module in (model.q, model.k, model.v)]
        assert kinds == [PackedPart] * 3
        assert type(model.gate) is type(model.o) is PackedLinear
        for _ in range(2):
            torch.testing.assert_close(model(inputs), expected)
        # Whoever asks for less, in another order or with something else gets what he asks for.
        other = torch.randn(2, 24)
        wanted = [model.k(inputs), model.v(other), model.k(other), model.q(inputs)]
        again = [model.k(inputs[:]), model.v(other[:]), model.k(other[:]), model.q(inputs[:])]
        for one, two in zip(wanted, again, strict=True):
            torch.testing.assert_close(one, two)


def test_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"not read here")
    made: list[Path] = []

    def convert(source: Path, dtype: Any, target: Path) -> None:
        made.append(target)
        write_tiny_llama(target)

    monkeypatch.setattr(models, "_convert", convert)
    cache = tmp_path / "cache"
    for _ in range(2):
        assert load_model(gguf, cache_dir=cache).name == "tiny"
    assert len(made) == 1
    assert [folder.name.split("-")[:2] for folder in (cache / "models").iterdir()] == [
        ["tiny", "float32"]
    ]
    load_model(gguf, cache_dir=cache, dtype="bfloat16")
    gguf.write_bytes(b"another one")
    load_model(gguf, cache_dir=cache)
    assert len(made) == 3
