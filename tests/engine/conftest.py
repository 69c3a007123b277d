"""A tiny Llama with random weights and a tokenizer of bytes: fast, and it repeats itself a lot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

VOCABULARY = 260
EOS = 257


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_byte_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(f"<|{name}|>", special=True) for name in ("pad", "end")])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    ).save_pretrained(folder)


def write_tiny_llama(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(3)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": 256,
    }
    config = transformers.LlamaConfig(**(settings | changes))
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def target(tiny_llama: Path) -> TargetModel:
    from suffixspec_engine.models import load_model

    return load_model(tiny_llama)


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama)
