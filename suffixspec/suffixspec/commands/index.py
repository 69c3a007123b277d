"""``suffixspec index``: look after the log of sequences that replicas share and restart from."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from suffixspec.services import log_url
from suffixspec.settings import ServiceSettings
from suffixspec_index.errors import ConfigError, InputError

if TYPE_CHECKING:
    from suffixspec_index.log.base import LogStatistics, SequenceLog
    from suffixspec_index.namespaces import NamespaceKey

app = typer.Typer(
    help="Look after the log that replicas share and restart from.", no_args_is_help=True
)
EXIT_DAMAGED = 3


def _placed(context: typer.Context, log: str) -> str:
    """``journal`` is the service's own, wherever the settings put it."""
    if log != "journal":
        return log
    given = context.obj.settings.service if context.obj is not None else ServiceSettings()
    place = log_url(given.model_copy(update={"log": "journal"}))
    assert place is not None
    return place


Log = Annotated[
    str,
    typer.Argument(
        metavar="LOG",
        callback=_placed,
        help="journal (the service's own), journal:FOLDER, redis://...; see docs/sharing.md.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tenant = Annotated[str | None, typer.Option(help="Only namespaces of this tenant.")]
Model = Annotated[str | None, typer.Option(help="Only namespaces of this model.")]
Namespace = Annotated[
    str | None,
    typer.Option(metavar="DIGEST", help="Only this namespace; the first digits will do."),
]


@app.command()
def stats(
    log: Log = "journal",
    tenant: Tenant = None,
    model: Model = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Say what a log holds, namespace by namespace."""
    with _opened(log, read_only=True) as opened:
        keys = _chosen(opened, tenant, model, namespace)
        found = {key: opened.statistics(key) for key in keys}
    if as_json:
        rows = [_named(key) | asdict(one) for key, one in found.items()]
        typer.echo(json.dumps({"log": opened.url, "namespaces": rows}, indent=2))
        return
    table = _table("records", "tokens", "bytes", "B/token", "newest")
    for key, one in found.items():
        table.add_row(*_cells(key, one))
    _print(table, opened.url)


@app.command()
def export(
    log: Log,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="To write: .jsonl or .jsonl.gz.")],
    tenant: Tenant = None,
    model: Model = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Write what a log holds to a file of JSON lines.

    The file appears once it is complete: stopped earlier, it is as it was.
    """
    from suffixspec_index.log.transfer import export_lines

    temporary = file.with_name(f".{file.name}.partial")
    count = _Counter()
    try:
        with _opened(log, read_only=True) as opened:
            keys = _chosen(opened, tenant, model, namespace)
            total = sum(opened.statistics(key).records for key in keys)
            with (
                _text(temporary, "wt", compressed=file.suffix == ".gz") as out,
                count.shown("exporting", total),
            ):
                for line in export_lines(opened, keys, count):
                    out.write(line + "\n")
        temporary.replace(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error}; check the path") from None
    finally:
        temporary.unlink(missing_ok=True)
    _say(as_json, {"file": str(file), "namespaces": len(keys), "records": count.done})


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that export wrote.")],
    log: Log,
    as_json: Json = False,
) -> None:
    """Append what a file of JSON lines holds to a log. Running replicas take it in at once.

    Stopped in the middle, what was written stays: running it again would write it twice.
    """
    from suffixspec_index.log.transfer import import_lines

    count = _Counter()
    try:
        with (
            _text(file, "rt", compressed=file.suffix == ".gz") as lines,
            _opened(log) as opened,
            count.shown("importing", None),
        ):
            found = import_lines(lines, opened, count)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{file}: cannot be read: {error}; check the path") from None
    _say(as_json, {"file": str(file), "namespaces": len(found), "records": count.done})


@app.command()
def purge(
    log: Log,
    tenant: Tenant = None,
    model: Model = None,
    namespace: Namespace = None,
    everything: Annotated[bool, typer.Option("--all", help="Every namespace.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only what was said longer ago: 90s, 12h, 30d."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget sequences for good, in the log and in every replica that follows it."""
    from suffixspec_index.log.base import FOREVER, new_origin
    from suffixspec_index.log.options import span

    if not everything and not (tenant or model or namespace):
        raise ConfigError("purge: name what to forget: --tenant, --model, --namespace, or --all")
    before = FOREVER
    if older_than is not None:
        before = round(time.time() - cast(float, span("--older-than")(older_than)), 6)
    with _opened(log) as opened:
        keys = _chosen(opened, tenant, model, namespace)
        if not yes and keys:
            what = ", ".join(str(key) for key in keys[:5]) + (", ..." if len(keys) > 5 else "")
            typer.confirm(f"Forget {older_than or 'everything'} of {what}?", abort=True, err=True)
        sizes = {key: opened.statistics(key).records for key in keys}
        for key in keys:
            opened.purge(key, before=before, origin=new_origin(), number=0)
        left = sum(opened.statistics(key).records - 1 for key in keys)  # the mark is one
    gone = sum(sizes.values()) - left
    _say(as_json, {"namespaces": len(keys), "records": gone})


@app.command()
def verify(
    log: Log = "journal",
    tenant: Tenant = None,
    model: Model = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Read every record and its checksum. Exit code 3 where something is damaged."""
    from suffixspec_index.log import transfer

    count = _Counter()
    with _opened(log, read_only=True) as opened:
        keys = _chosen(opened, tenant, model, namespace)
        total = sum(opened.statistics(key).records for key in keys)
        with count.shown("verifying", total):
            found = {key: transfer.verify(opened, key, count) for key in keys}
    if as_json:
        rows = [_named(key) | asdict(one) for key, one in found.items()]
        typer.echo(json.dumps({"log": opened.url, "namespaces": rows}, indent=2))
    else:
        columns = ("sequences", "tokens", "unfinished", "orphans", "duplicates", "damaged")
        shorter = {"unfinished": "open", "duplicates": "twice"}
        table = _table(*(shorter.get(name, name) for name in columns))
        for key, one in found.items():
            cells = [f"{getattr(one, name):,}" for name in columns]
            table.add_row(_who(key), *cells)
        _print(table, opened.url)
    if any(one.damaged for one in found.values()):
        raise typer.Exit(EXIT_DAMAGED)


# --- what they share -----------------------------------------------------------------------------


def _table(*figures: str) -> Table:
    """Of namespaces; a long name is folded where the terminal is too narrow, a figure never."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("namespace", overflow="fold", min_width=10)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(table: Table, url: str) -> None:
    if table.row_count:
        Console().print(table)
    else:
        typer.echo(f"{url}: holds nothing")


@contextmanager
def _opened(url: str, *, read_only: bool = False) -> Iterator[SequenceLog]:
    from suffixspec_index.log import open_log

    with open_log(url, read_only=read_only) as log:
        yield log


def _chosen(
    log: SequenceLog, tenant: str | None, model: str | None, namespace: str | None
) -> list[NamespaceKey]:
    """The namespaces that were asked for.

    Raises:
        InputError: there is none, although one was named.
    """
    keys = [
        key
        for key in sorted(log.namespaces(), key=str)
        if (tenant is None or key.tenant == tenant)
        and (model is None or key.model == model)
        and (namespace is None or key.digest.startswith(namespace.lower()))
    ]
    if not keys and (tenant or model or namespace):
        raise InputError(f"{log.url}: holds no such namespace; see: suffixspec index stats")
    return keys


def _named(key: NamespaceKey) -> dict[str, Any]:
    return {"namespace": key.digest} | asdict(key)


def _who(key: NamespaceKey) -> str:
    """A namespace in a few short lines: what --namespace takes, then whose it is."""
    names = [key.digest[:8], key.tenant, key.model]
    return "\n".join([*names, f"+ {key.adapter}"] if key.adapter else names)


def _cells(key: NamespaceKey, one: LogStatistics) -> list[str]:
    per_token, newest = one.bytes_per_token, "-"
    if one.last_time:
        newest = f"{datetime.fromtimestamp(one.last_time, UTC):%Y-%m-%d %H:%M}Z"
    return [
        _who(key),
        f"{one.records:,}",
        "-" if one.tokens is None else f"{one.tokens:,}",
        f"{one.bytes:,}",
        "-" if per_token is None else f"{per_token:.2f}",
        newest,
    ]


def _text(path: Path, mode: str, *, compressed: bool) -> IO[str]:
    if compressed:
        return cast(IO[str], gzip.open(path, mode, encoding="utf-8"))
    return cast(IO[str], path.open(mode, encoding="utf-8"))


def _say(as_json: bool, done: dict[str, Any]) -> None:
    if as_json:
        typer.echo(json.dumps(done))
    else:
        Console(stderr=True, soft_wrap=True).print(
            f"{done['records']:,} records, {done['namespaces']} namespaces"
        )


class _Counter:
    """Counts records, and moves a bar while one is shown."""

    def __init__(self) -> None:
        self.done = 0
        self._bar: Progress | None = None

    def __call__(self, records: int) -> None:
        self.done += records
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done)

    @contextmanager
    def shown(self, doing: str, total: int | None) -> Iterator[None]:
        """Show a bar on standard error, where that is a terminal."""
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as self._bar:
            self._bar.add_task(doing, total=total)
            yield
        self._bar = None
