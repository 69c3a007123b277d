from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixspec.bench.datasets import (
    DatasetOptions,
    dataset_names,
    make_workload,
    without_sessions,
)
from suffixspec.bench.workload import Workload
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer


def make(renderer: ChatRenderer, name: str, path: Path | None = None, **options: Any) -> Workload:
    paths = () if path is None else (str(path),)
    return make_workload(DatasetOptions(name=name, paths=paths, **options), renderer)


def texts(renderer: ChatRenderer, workload: Workload) -> list[str]:
    prompts = [r.prompt for r in workload.requests]
    return [p if isinstance(p, str) else renderer.tokenizer.decode(p) for p in prompts]


class TestTraces:
    def test_turns_carry_the_recorded_history(self, renderer: ChatRenderer, traces: Path) -> None:
        workload = make(renderer, "traces", traces, num_prompts=100, shuffle=False)
        rendered = [renderer.render_session(s) for s in read_traces([traces])]
        assert [len(s) for s in workload.sessions] == [3] * 5
        for asked, session in zip(workload.sessions, rendered, strict=True):
            for request, turn in zip(asked, session.turns, strict=True):
                assert request.session == session.id
                assert np.array_equal(request.prompt, turn.prompt)
                assert request.max_tokens == len(turn.output)
        last = workload.sessions[4][2].messages
        assert last is not None
        assert [m["role"] for m in last] == ["system", *["user", "assistant"] * 2, "user"]
        assert last[-1]["content"] == "Session 4: say 2."

    def test_the_number_of_requests_is_the_number_of_turns(
        self, renderer: ChatRenderer, traces: Path
    ) -> None:
        workload = make(renderer, "traces", traces, num_prompts=7, output_len=5, seed=3)
        assert [r.number for r in workload.requests] == list(range(7))
        assert [len(s) for s in workload.sessions] == [3, 3, 1]
        assert {r.max_tokens for r in workload.requests} == {5}

    def test_order_follows_the_seed(self, renderer: ChatRenderer, traces: Path) -> None:
        def order(seed: int) -> list[str]:
            made = make(renderer, "traces", traces, num_prompts=15, seed=seed)
            return [s[0].session for s in made.sessions]

        assert order(1) == order(1)
        assert len({tuple(order(seed)) for seed in range(6)}) > 1

    def test_an_index_is_not_taught_what_is_asked(
        self, renderer: ChatRenderer, traces: Path
    ) -> None:
        workload = make(renderer, "traces", traces, num_prompts=4, shuffle=False)
        others = without_sessions(list(read_traces([traces])), workload)
        assert [s.id for s in others] == ["talk-2", "talk-3", "talk-4"]


class TestCustom:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        rows: list[dict[str, object]] = [{"prompt": "one", "output_tokens": 3}, {"prompt": "two"}]
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
        return path

    def test_prompts_and_lengths(self, renderer: ChatRenderer, file: Path) -> None:
        workload = make(renderer, "custom", file, num_prompts=5, shuffle=False)
        assert [r.max_tokens for r in workload.requests] == [3, 256, 3, 256, 3]
        assert texts(renderer, workload)[0].endswith("assistant\n")
        assert "user\none" in texts(renderer, workload)[0]
        raw = make(renderer, "custom", file, num_prompts=5, shuffle=False, skip_chat_template=True)
        assert texts(renderer, raw) == ["one", "two", "one", "two", "one"]
        assert raw.requests[1].messages == ({"role": "user", "content": "two"},)

    def test_not_more_than_there_are(self, renderer: ChatRenderer, file: Path) -> None:
        assert len(make(renderer, "custom", file, num_prompts=5, oversample=False).requests) == 2

    @pytest.mark.parametrize("text", ['{"text": "x"}', "[1]", "no json", '{"prompt": 3}'])
    def test_lines_without_a_prompt(
        self, renderer: ChatRenderer, tmp_path: Path, text: str
    ) -> None:
        path = tmp_path / "broken.jsonl"
        path.write_text('{"prompt": "x"}\n' + text)
        with pytest.raises(InputError, match=r"broken\.jsonl:2"):
            make(renderer, "custom", path)

    def test_an_empty_file(self, renderer: ChatRenderer, tmp_path: Path) -> None:
        (tmp_path / "empty.jsonl").write_text("\n")
        with pytest.raises(InputError, match="hold no request"):
            make(renderer, "custom", tmp_path / "empty.jsonl")


def test_sharegpt_takes_what_vllm_takes(renderer: ChatRenderer, tmp_path: Path) -> None:
    def talk(*said: str) -> dict[str, Any]:
        return {"conversations": [{"from": "x", "value": text} for text in said]}

    path = tmp_path / "share.json"
    path.write_text(
        json.dumps(
            [
                talk("what is it", "it is a thing"),
                talk("alone"),
                talk("a", "too short a prompt"),
                talk("long " * 3000, "too long a prompt"),
                talk("an answer too short", "a"),
                {"other": 1},
                talk("where is it", "over there it is", "and more"),
            ]
        )
    )
    workload = make(renderer, "sharegpt", path, shuffle=False)
    assert texts(renderer, workload) == ["what is it", "where is it"]
    lengths = [len(renderer.tokenizer.encode(a)) for a in ("it is a thing", "over there it is")]
    assert [r.max_tokens for r in workload.requests] == lengths
    assert len(make(renderer, "sharegpt", path, num_prompts=1).requests) == 1
    path.write_text("{}")
    with pytest.raises(InputError, match="not a JSON list"):
        make(renderer, "sharegpt", path)


class TestRandom:
    def test_lengths_and_prefix(self, renderer: ChatRenderer) -> None:
        options: dict[str, Any] = {
            "input_len": 50,
            "output_len": 20,
            "prefix_len": 7,
            "num_prompts": 30,
        }
        workload = make(renderer, "random", **options)
        prompts = [np.asarray(r.prompt) for r in workload.requests]
        assert {len(p) for p in prompts} == {57}
        assert {r.max_tokens for r in workload.requests} == {20}
        assert all(np.array_equal(p[:7], prompts[0][:7]) for p in prompts)
        assert len({tuple(p) for p in prompts}) > 20
        special = set(renderer.tokenizer.special_token_ids)
        assert not any(special & set(p.tolist()) for p in prompts)

    def test_ranges(self, renderer: ChatRenderer) -> None:
        spread: dict[str, Any] = {"range_ratio": 0.5, "num_prompts": 200, "seed": 5}
        workload = make(renderer, "random", input_len=40, output_len=10, **spread)
        lengths = [len(r.prompt) for r in workload.requests]
        assert 20 <= min(lengths) < 30 < 50 < max(lengths) <= 60
        outputs = [r.max_tokens for r in workload.requests]
        assert (min(outputs), max(outputs)) == (5, 15)
        again = make(renderer, "random", input_len=40, output_len=10, **spread)
        assert [r.prompt.tolist() for r in again.requests if not isinstance(r.prompt, str)] == [
            r.prompt.tolist() for r in workload.requests if not isinstance(r.prompt, str)
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "trace"}, "traces"),
        ({"name": "traces"}, "needs a file"),
        ({"name": "random", "paths": ("x",)}, "reads no file"),
        ({"name": "custom", "paths": ("x", "y")}, "reads one file"),
        ({"name": "random", "num_prompts": 0}, "--num-prompts: 0"),
        ({"name": "random", "output_len": 0}, "--output-len: 0"),
        ({"name": "random", "input_len": 0}, "--random-input-len: 0"),
        ({"name": "random", "prefix_len": -1}, "--random-prefix-len: -1"),
        ({"name": "random", "range_ratio": 1.0}, "--random-range-ratio"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetOptions(**options)


def test_names_and_absent_files(renderer: ChatRenderer) -> None:
    assert dataset_names() == ["custom", "random", "sharegpt", "traces"]
    with pytest.raises(ConfigError, match="cannot be read"):
        make(renderer, "custom", Path("absent.jsonl"))
