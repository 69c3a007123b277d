"""A small tokenizer with a chat template, and trace files in its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer
from tests.traces.tiny_tokenizer import write_tokenizer_directory


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_directory(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def renderer(tokenizer_folder: Path) -> ChatRenderer:
    return ChatRenderer(load_tokenizer(tokenizer_folder))


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five sessions of three turns."""
    path = tmp_path_factory.mktemp("traces") / "talks.jsonl"
    lines = []
    for number in range(5):
        messages = [{"role": "system", "content": "You help."}]
        for turn in range(3):
            messages += [
                {"role": "user", "content": f"Session {number}: say {turn}."},
                {"role": "assistant", "content": f"Saying {turn}, as you like, in {number}."},
            ]
        lines.append(json.dumps({"id": f"talk-{number}", "messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path
