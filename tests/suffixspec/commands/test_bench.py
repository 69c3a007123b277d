"""``suffixspec bench``: an engine over a tiny model, a tiny server, and our own service."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from suffixspec import cli
from suffixspec.bench.backends.in_process import InProcessBackend
from suffixspec_index.errors import ConfigError
from tests.engine.conftest import write_tiny_llama
from tests.suffixspec.bench.fake_server import FakeServer, running
from tests.threads import ended

if TYPE_CHECKING:
    from suffixspec.bench.results import RequestResult
    from suffixspec.bench.workload import BenchRequest

PROMPTS = ["abcabcabcabc", "one two one two one", "xyxyxyxyxy", "the end the end the end"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"), initializer_range=0.1)


@pytest.fixture(autouse=True)
def _prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": text, "output_tokens": 30}) for text in PROMPTS]
    Path("prompts.jsonl").write_text("\n".join(rows))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as fake:
        yield fake


CUSTOM = ["--dataset-name", "custom", "--skip-chat-template", "--num-prompts", "4"]


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli.app, ["bench", *args])


def bench(*args: str, code: int = 0) -> dict[str, Any]:
    result = invoke(*args, "--json", "out.json")
    assert result.exit_code == code, result.output + str(result.exception)
    document: dict[str, Any] = json.loads(Path("out.json").read_text())
    return document | {"output": result.output}


def engine(tiny: Path, *args: str, code: int = 0) -> dict[str, Any]:
    model = ["prompts.jsonl", *CUSTOM, "--model", str(tiny), "--threads", "1"]
    return bench(*model, *args, code=code)


def test_methods_side_by_side_and_lossless(tiny: Path) -> None:
    draft_all = '{"method": "suffix", "suffix_decoding_min_token_prob": 0}'
    found = engine(
        tiny, "--methods", "none,ngram", "--methods", draft_all, "--concurrency", "2",
        "--repeats", "2", "--plot", "plot.html",
    )  # fmt: skip
    none, ngram, suffix = found["runs"]
    for run in found["runs"]:
        assert (run["completed"], run["failed"], run["rounds"]) == (8, 0, 2)
        assert run["output_throughput"] > 0
        for metric in ("ttft", "tpot", "itl", "e2el"):
            assert 0 < run[f"median_{metric}_ms"] <= run[f"p99_{metric}_ms"]
        assert run["median_ttft_ms"] < run["median_e2el_ms"]
    assert none["speedup"] == 1.0
    assert none["tokens_per_step"] == 1.0
    assert none["equality"] is None
    assert none["total_output_tokens"] == suffix["total_output_tokens"]
    for run in (ngram, suffix):
        assert run["equality"] == {
            "reference": "none", "compared": 8, "different": 0, "first_difference": None,
        }  # fmt: skip
    assert suffix["tokens_per_step"] > 1.2
    assert suffix["spec_decode_accepted_tokens"] > 0
    assert suffix["median_itl_ms"] > 0
    assert found["dtype"] == "float32"
    assert found["max_concurrency"] == 2
    assert "all 8 outputs equal none's" in found["output"]
    page = Path("plot.html").read_text()
    assert "plotly" in page
    assert "time to first token" in page


def test_sampled_text_is_compared_where_it_is_seeded(tiny: Path) -> None:
    sampled = ["--temperature", "0.8", "--methods", "none,suffix"]
    assert engine(tiny, *sampled, "--sampling-seed", "3")["runs"][1]["equality"]["different"] == 0
    assert engine(tiny, *sampled)["runs"][1]["equality"] is None


def test_a_difference_in_float32_is_a_fault(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = InProcessBackend.send

    async def corrupted(self: InProcessBackend, request: BenchRequest) -> RequestResult:
        result = await send(self, request)
        if (await self.speculation()).drafts and request.number == 2:
            assert result.token_ids is not None
            result.token_ids = (*result.token_ids[:-1], 1 - min(result.token_ids[-1], 1))
        return result

    monkeypatch.setattr(InProcessBackend, "send", corrupted)
    found = engine(tiny, "--methods", "none,ngram", code=1)
    equality = found["runs"][1]["equality"]
    assert equality["different"] == 1
    assert equality["first_difference"] == [2, 29]
    assert "1 of 4 outputs differ" in found["output"]


def test_a_warm_index_has_served_other_sessions(tiny: Path) -> None:
    talks = [
        {"id": f"t{i}", "messages": [{"role": "user", "content": "abc"},
         {"role": "assistant", "content": "abcabcabc"}]}
        for i in range(3)
    ]  # fmt: skip
    Path("talks.jsonl").write_text("\n".join(map(json.dumps, talks)))
    found = engine(tiny, "--methods", "suffix", "--warm-index", "talks.jsonl")
    assert found["warm_index_sessions"] == 3
    asked = ["talks.jsonl", "--model", str(tiny), "--threads", "1", "--num-prompts", "1"]
    found = bench(*asked, "--methods", "suffix", "--warm-index", "talks.jsonl")
    assert found["warm_index_sessions"] == 2


def test_results_are_saved_as_vllm_does(tiny: Path) -> None:
    engine(
        tiny, "--methods", "none,suffix", "--save-result", "--save-detailed", "--result-dir",
        "results", "--ignore-eos",
    )  # fmt: skip
    paths = sorted(Path("results").iterdir())
    assert [p.name.partition("-inf")[0] for p in paths] == ["none", "suffix"]
    saved = json.loads(paths[1].read_text())
    assert saved["label"] == "suffix"
    assert sorted(saved["output_lens"]) == [30] * 4
    assert len(saved["ttfts"]) == len(saved["itls"]) == len(saved["generated_texts"]) == 4
    engine(tiny, "--methods", "none", "--save-result", "--result-filename", "mine.json")
    assert json.loads(Path("mine.json").read_text())["label"] == "none"


class TestServers:
    def test_two_servers_side_by_side(self, server: FakeServer, tiny: Path) -> None:
        server.pause = 0.01
        urls = ["--base-url", f"one={server.url}", "--base-url", f"{server.url}/v1"]
        found = bench(
            "prompts.jsonl", *CUSTOM, *urls, "--tokenizer", str(tiny), "--concurrency", "3",
            "--goodput", "e2el:100000", "--header", "x-team=a",
        )  # fmt: skip
        first, second = found["runs"]
        assert first["label"] == "one"
        assert second["label"] == f"{server.url}/v1".removeprefix("http://")
        assert second["equality"]["different"] == 0
        assert first["completed"] == 4
        assert first["total_output_tokens"] == 120
        assert first["spec_decode_acceptance_rate"] == 50.0
        assert first["request_goodput"] == pytest.approx(first["request_throughput"])
        # 15 chunks with 10 ms before each.
        assert first["median_itl_ms"] >= 10
        assert first["median_e2el_ms"] >= 150
        assert server.most_at_once == 3
        assert {h["x-team"] for h in server.headers} == {"a"}
        assert "tokens_per_step" in first
        assert "one" in found["output"]
        assert "against the first" in found["output"]

    def test_one_server_is_compared_with_nobody(self, server: FakeServer, tiny: Path) -> None:
        options = ["--url", server.url, "--tokenizer", str(tiny), "--num-prompts", "1"]
        found = bench("prompts.jsonl", *CUSTOM, *options)
        assert "against the first" not in found["output"]
        assert "1 request, custom" in found["output"]

    def test_failed_requests_are_shown(self, server: FakeServer, tiny: Path) -> None:
        server.fail_from = 3  # the warm-up is one of them
        options = ["--base-url", server.url, "--tokenizer", str(tiny), "--concurrency", "1"]
        found = bench("prompts.jsonl", *CUSTOM, *options)
        (run,) = found["runs"]
        assert (run["completed"], run["failed"]) == (2, 2)
        assert "HTTP 503" in run["errors"][0]
        assert "too busy" in found["output"]

    def test_interrupting_shows_what_is_done(self, server: FakeServer, tiny: Path) -> None:
        server.pause = 0.02
        main = threading.get_ident()

        def interrupt() -> None:
            while len(server.bodies) < 4:
                threading.Event().wait(0.01)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt, daemon=True)  # if it fails, nobody comes
        thread.start()
        options = ["--base-url", server.url, "--tokenizer", str(tiny), "--concurrency", "1"]
        found = bench("prompts.jsonl", *CUSTOM, *options, code=130)
        ended([thread])
        (run,) = found["runs"]
        assert 1 <= run["completed"] < 4
        assert not run["complete"]
        assert "interrupted" in found["output"]

    def test_our_own_service(self, tiny: Path) -> None:
        from suffixspec_engine.models import load_model
        from tests.service.serving import served

        random = ["--dataset-name", "random", "--random-input-len", "40", "--num-prompts", "6"]
        with served(load_model(tiny)) as service:
            found = bench(
                *random, "--random-output-len", "12", "--base-url", service.url, "--tokenizer",
                str(tiny), "--concurrency", "3",
            )  # fmt: skip
        (run,) = found["runs"]
        assert (run["completed"], run["failed"], run["errors"]) == (6, 0, [])
        assert 6 <= run["total_output_tokens"] <= 72
        assert run["total_input_tokens"] == 240


def test_a_pipe_gets_nothing_but_json(tiny: Path) -> None:
    result = CliRunner().invoke(
        cli.app,
        [
            "bench",
            "prompts.jsonl",
            *CUSTOM,
            "--model",
            str(tiny),
            "--methods",
            "none",
            "--json",
            "-",
        ],
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"][0]["completed"] == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dataset-name", "custm", "x"], "custom"),
        ([], "--dataset-path: 'traces' needs a file"),
        (["x", "--concurrency", "0"], "--max-concurrency: 0"),
        (["x", "--repeats", "0"], "--repeats must be"),
        (["x", "--percentile-metrics", "ttft,tpots"], "tpot"),
        (["x", "--metric-percentiles", "101"], "--metric-percentiles"),
        (["x", "--goodput", "itl:5"], "--goodput"),
        (["x", "--plot", "x.svg"], "must end in .html or .png"),
        (["x", "--base-url", "localhost:8000", "--tokenizer", "y"], "http://"),
        (["x", "--base-url", "http://a", "--methods", "none"], "--methods"),
        (["x", "--base-url", "http://a"], "--tokenizer: name"),
        (["x", "--base-url", "http://a", "--tokenizer", "y", "--header", "z"], "--header"),
        (["x", "--base-url", "http://a", "--tokenizer", "y", "--extra-body", "1"], "--extra-body"),
        (["x", "--methods", "chess"], "chess"),
    ],
)
def test_wrong_values(args: list[str], message: str) -> None:
    result = invoke(*args)
    assert isinstance(result.exception, ConfigError), result.output
    assert message in str(result.exception)
