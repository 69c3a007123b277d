from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import ConfigError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from suffixspec_engine.hf_generate import HfTextModel, repeats  # noqa: E402

VOCABULARY = 300


def prompt(seed: int, length: int = 12) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, length, dtype=np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights: grouped heads, as SmolLM2 has them."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.5,
        eos_token_id=2,
        pad_token_id=0,
    )
    path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> HfTextModel:
    return HfTextModel(folder)


def test_equals_transformers_own_generate(model: HfTextModel, folder: Path) -> None:
    prompts = [prompt(1), prompt(2, 40), prompt(3, 1)]
    keys = ["a", "b", "c"]
    outputs = model.generate(prompts, keys=keys, max_new_tokens=24)
    # Second turns go on from the first ones' caches.
    longer = [np.concatenate([p, o, prompt(9, 5)]) for p, o in zip(prompts, outputs, strict=True)]
    outputs += model.generate(longer, keys=keys, max_new_tokens=24)
    for key in keys:
        model.release(key)

    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for given, output in zip([*prompts, *longer], outputs, strict=True):
        ids = torch.tensor([given.tolist()])
        # A mask of ones: by itself generate hides tokens that equal the padding token.
        said = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )
        assert said[0, len(given) :].tolist() == output.tolist()


def test_caches_grow(model: HfTextModel) -> None:
    long = prompt(4, 500)
    grown = model.generate([long[:20]], keys=["grown"], max_new_tokens=4)[0]
    assert len(grown) <= 4
    whole = model.generate([long], keys=["grown"], max_new_tokens=8)
    fresh = model.generate([long], keys=["fresh"], max_new_tokens=8)
    assert whole[0].tolist() == fresh[0].tolist()


def test_an_edited_history_is_recomputed(model: HfTextModel) -> None:
    first, second = prompt(5, 30), prompt(5, 30).copy()
    second[15] = 7
    model.generate([first], keys=["edited"], max_new_tokens=8)
    again = model.generate([second], keys=["edited"], max_new_tokens=8)
    fresh = model.generate([second], keys=["new"], max_new_tokens=8)
    assert again[0].tolist() == fresh[0].tolist()


def test_draws_do_not_depend_on_the_batch(folder: Path) -> None:
    model = HfTextModel(folder, temperature=1.0, top_p=0.9, seed=5)
    prompts = [prompt(6), prompt(7)]
    together = model.generate(prompts, keys=["x", "y"], max_new_tokens=8)
    model.release("x")
    model.release("y")
    alone = model.generate([prompts[1]], keys=["y"], max_new_tokens=8)
    assert alone[0].tolist() == together[1].tolist()
    other = model.generate([prompts[1]], keys=["z"], max_new_tokens=8)
    assert other[0].tolist() != together[1].tolist()


def test_a_tiny_nucleus_is_greedy(model: HfTextModel, folder: Path) -> None:
    sampled = HfTextModel(folder, temperature=1.0, top_p=1e-9)
    ask = prompt(8)
    assert (
        sampled.generate([ask], keys=["n"], max_new_tokens=8)[0].tolist()
        == model.generate([ask], keys=["n"], max_new_tokens=8)[0].tolist()
    )


def test_wrong_settings(model: HfTextModel, folder: Path) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        HfTextModel(folder, temperature=-1.0)
    with pytest.raises(ConfigError, match="top_p"):
        HfTextModel(folder, top_p=0.0)
    with pytest.raises(ConfigError, match="does not exist"):
        HfTextModel(folder / "absent.gguf")
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        model.generate([prompt(1)], keys=["k"], max_new_tokens=0)


def test_repeats() -> None:
    assert repeats([1, 2, *[3, 4, 5, 6, 7, 8] * 3], 3)
    assert not repeats([1, 2, *[3, 4, 5, 6, 7, 8] * 3, 9], 3)
    assert not repeats([7] * 12, 3)  # too short to be a loop: a row of dashes
    assert repeats([7] * 18, 3)
    assert not repeats(list(range(100)), 3)
    assert not repeats([], 3)
