"""Results as files: one document, or one per rival as vLLM's ``--save-result`` writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from suffixspec.bench.report import BenchReport
from suffixspec.bench.results import Round


def save_results(
    report: BenchReport,
    rounds: Mapping[str, Sequence[Round]],
    folder: Path,
    filename: str | None,
    *,
    detailed: bool,
) -> list[Path]:
    """One JSON file per rival. Returns the paths.

    Args:
        filename: of the file; with several rivals each label stands before its suffix.
        detailed: with every request's times and text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, summary in enumerate(report.summaries):
        path = folder / _name(report.head, summary.label, filename, len(report.summaries) > 1)
        document = report.run_json(index)
        if detailed:
            document |= details(rounds[summary.label])
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        paths.append(path)
    return paths


def details(rounds: Sequence[Round]) -> dict[str, Any]:
    """Per request, over all rounds, under vLLM's keys; times in seconds."""
    results = [result for one in rounds for result in one.results]
    return {
        "request_numbers": [r.request.number for r in results],
        "sessions": [r.request.session for r in results],
        "input_lens": [r.prompt_tokens for r in results],
        "output_lens": [r.output_tokens for r in results],
        "ttfts": [r.ttft for r in results],
        "itls": [r.itls for r in results],
        "latencies": [r.latency for r in results],
        "generated_texts": [r.text for r in results],
        "errors": [r.error or "" for r in results],
    }


def _name(head: Mapping[str, Any], label: str, filename: str | None, several: bool) -> str:
    safe = re.sub(r"[^\w.+-]+", "_", label).strip("_") or "run"
    if filename is not None:
        path = Path(filename)
        return f"{path.stem}-{safe}{path.suffix}" if several else filename
    limit = head["max_concurrency"]
    concurrency = "" if limit is None else f"-concurrency{limit}"
    model = re.sub(r"[^\w.+-]+", "_", str(head["model_id"]).rstrip("/").rpartition("/")[2])
    date = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return f"{safe}-{head['request_rate']}qps{concurrency}-{model}-{date}.json"
