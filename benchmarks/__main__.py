"""``python -m benchmarks [GROUP ...] [--json FILE]``: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import peer
from benchmarks.harness import DTYPES, Context, Row, groups, header

WIDTH = 150
"""Columns of the table where it goes to a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named groups (all, where none is named). Returns the exit status."""
    known = groups()
    parser = _parser(list(known))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.groups) - set(known))
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; known: {', '.join(known)}")
    if options.repeats < 1:
        parser.error(f"--repeats: must be at least 1, got {options.repeats}")
    console = Console(stderr=True)
    output = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    context = Context(
        repeats=options.repeats,
        quick=options.quick,
        dtypes=tuple(dict.fromkeys(options.dtype or DTYPES)),
        figures=options.figures,
        say=lambda text: console.print(f"[dim]{text}[/dim]"),
    )
    if not peer.available():
        console.print(
            "[yellow]arctic-inference is not installed, so its column stays empty; "
            "benchmarks/install_peer.sh installs it[/yellow]"
        )
    rows: list[Row] = []
    for name in options.groups or known:
        console.print(f"[bold]{name}[/bold]: {known[name].summary}")
        found = known[name].run(context)
        rows += found
        output.print(table(name, found))
    head = header(context)
    output.print(_headline(head))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"header": head, "rows": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return int(options.strict and any(row.met is False for row in rows))


def table(title: str, rows: Sequence[Row]) -> Table:
    """The rows of a group for a terminal."""
    result = Table(title=title, title_justify="left")
    result.add_column("what")
    for column in ("ours", "peer", "ratio", "goal"):
        result.add_column(column, justify="right")
    result.add_column("unit")
    result.add_column("met")
    for row in rows:
        mark = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[row.met]
        ratio = "–" if row.ratio is None else f"{row.ratio:.3g} ×"
        result.add_row(
            row.name, _figure(row.ours), _figure(row.peer), ratio, row.goal, row.unit, mark
        )
    return result


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _headline(head: dict[str, Any]) -> str:
    machine = head["machine"]
    versions = ", ".join(f"{name} {v or 'absent'}" for name, v in head["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores; Python {head['python']}; {versions}; "
        f"data: {head['data']}; commit {head['commit']}; {head['date']}"
    )


def _parser(known: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"which groups to run: {', '.join(known)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write header and rows as JSON")
    parser.add_argument("--repeats", type=int, default=5, help="rounds per timing (default: 5)")
    parser.add_argument(
        "--figures", type=Path, default=Context().figures, help="folder for images (default: out)"
    )
    parser.add_argument(
        "--dtype",
        action="append",
        choices=DTYPES,
        help="of models, in the groups engine and vllm; repeatable (default: both)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="less data and fewer settings: a smoke test"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
