from __future__ import annotations

from pathlib import Path

import pytest

from suffixspec_traces.tokenizers import TraceTokenizer, load_tokenizer
from tests.traces.tiny_tokenizer import write_tokenizer_directory


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_directory(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> TraceTokenizer:
    return load_tokenizer(tiny_directory)
