"""``suffixspec generate`` and ``suffixspec check-lossless``, on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from suffixspec import cli
from suffixspec.commands import check_lossless
from suffixspec.engines import make_engine
from suffixspec.methods import choose_methods
from suffixspec_index.errors import ConfigError
from suffixspec_index.speculative_config import SpeculativeConfig
from tests.engine.conftest import write_tiny_llama

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

runner = CliRunner()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str) -> str:
    result = runner.invoke(cli.app, list(args))
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.stdout


def generate(tiny: Path, *args: str) -> str:
    return run("generate", "--model", str(tiny), "--threads", "1", *args)


def test_text_is_streamed_and_summed_up(tiny: Path) -> None:
    output = generate(tiny, "abcabcabc", "again", "--max-tokens", "30")
    assert "> abcabcabc" in output
    assert "> again" in output
    assert output.count("tokens in") == 2
    assert "session" in output


def test_json_is_the_same_text_with_every_method(tiny: Path) -> None:
    Path("prompt.txt").write_text("a prompt in a file, a prompt in a file")
    records = [
        json.loads(generate(tiny, "@prompt.txt", "--raw", "--json", "--max-tokens", "40", *options))
        for options in (
            ("--method", "none"),
            ("--method", "suffix"),
            (
                "--speculative-config",
                '{"suffix_decoding_min_token_prob": 0, "draft_shape": "tree"}',
            ),
        )
    ]
    assert records[0]["text"] == records[1]["text"] == records[2]["text"]
    assert records[0]["metrics"]["drafted"] == 0
    assert records[2]["metrics"]["accepted"] > 0
    assert records[2]["sources"].count("session") == records[2]["metrics"]["accepted"]
    assert records[0]["finish_reason"] == "length"


def test_what_is_printed_is_the_text(tiny: Path) -> None:
    text = json.loads(generate(tiny, "abcabc", "--raw", "--json", "--max-tokens", "30"))["text"]
    stop = text[7:9]
    printed = generate(tiny, "abcabc", "--raw", "--max-tokens", "30", "--stop", stop)
    body = printed.removeprefix("> abcabc\n").rpartition("\n[")[0]
    # Control characters never reach a terminal.
    assert body == re.sub(r"[\x07\x08\x0b-\x0d]", "", text[: text.index(stop)])


def test_identical_outputs(tiny: Path) -> None:
    options = ("--threads", "1", "--max-tokens", "30", "--compare", "suffix,ngram,none")
    output = run("check-lossless", "--model", str(tiny), *options)
    assert output.count("identical") == 3
    results = json.loads(
        run(
            "check-lossless",
            "abcabcabc",
            "--model",
            str(tiny),
            *options,
            "--temperature",
            "0.8",
            "--rounds",
            "1",
            "--json",
        )
    )
    assert [result["method"] for result in results] == ["suffix", "ngram", "none"]
    assert all(result["lossless"] for result in results)


def test_a_draft_model_can_be_named(tiny: Path) -> None:
    options = ("--raw", "--max-tokens", "12", "--json", "--speculative-config")
    config = {"model": str(tiny), "num_speculative_tokens": 3, "draft_token_cost": 0.1}
    for method in ("draft_model", "hybrid"):
        text = generate(tiny, "abc", *options, json.dumps(config | {"method": method}))
        assert json.loads(text)["metrics"]["by_source"]["draft_model"]["accepted"] > 0
    with pytest.raises(ConfigError, match="cannot be used"):
        choose_methods(SpeculativeConfig(), config=json.dumps(config))


def test_a_difference_is_shown_with_its_margin(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model takes the place of the one that speculates."""
    from suffixspec_engine.models import load_model

    other = load_model(write_tiny_llama(tiny.parent / "other", initializer_range=0.25))
    make = make_engine

    def swapped(target: TargetModel, speculative: object, progress: object = None) -> object:
        return make(target if speculative is None else other, None)

    monkeypatch.setattr(check_lossless, "make_engine", swapped)
    Path("prompts.txt").write_text("abcabc\n\nxyz\n")
    result = runner.invoke(
        cli.app,
        ["check-lossless", "--model", str(tiny), "--prompt-file", "prompts.txt", "--threads", "1"],
    )
    assert result.exit_code == check_lossless.EXIT_DIFFERS, result.output
    assert "2 different" in result.stdout
    assert "first difference at output token" in result.stdout
    assert "top-2 margin" in result.stdout


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [5], 0), ([], [], None)],
)
def test_first_difference(left: list[int], right: list[int], expected: int | None) -> None:
    assert check_lossless.first_difference(left, right) == expected


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("generate", ["@absent.txt"], "cannot be read"),
        ("generate", ["x", "--model", "./absent"], "does not exist"),
        ("generate", ["x", "--threads", "0"], "--threads is 0"),
        ("check-lossless", ["--rounds", "0"], "--rounds is 0"),
        ("check-lossless", ["--prompt-file", "absent"], "cannot be read"),
    ],
)
def test_wrong_input(command: str, options: list[str], message: str) -> None:
    result = runner.invoke(cli.app, [command, *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
