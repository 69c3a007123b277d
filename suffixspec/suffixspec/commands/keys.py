"""``suffixspec keys``: API keys of the service."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from suffixspec.settings import LoadedSettings
from suffixspec_index.errors import ConfigError
from suffixspec_service.callers import KeyFile
from suffixspec_service.config import Limits

DEFAULT_FILE = Path("suffixspec-keys.json")

app = typer.Typer(help="Make, list and revoke API keys of the service.", no_args_is_help=True)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help=f"Default: service.keys_file, or {DEFAULT_FILE}."),
]


@app.callback()
def _keys() -> None:
    """Make, list and revoke API keys of the service."""


@app.command()
def add(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Whose key it is; tenants share nothing.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="May see the figures of all tenants.")
    ] = False,
    note: Annotated[str, typer.Option(help="What you want to read beside it later.")] = "",
    concurrent_requests: Annotated[
        int | None, typer.Option(help="Of the tenant, from now on.")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="Of the tenant, from now on.")
    ] = None,
    index_bytes: Annotated[int | None, typer.Option(help="Of the tenant, from now on.")] = None,
    file: FileOption = None,
) -> None:
    """Make a key and print it. It is shown once: the file only holds its hash.

    A running service takes it within a second.
    """
    path = _path(context, file)
    held = KeyFile.read(path) if path.exists() else KeyFile.new()
    limits = None
    if (concurrent_requests, tokens_per_second, index_bytes) != (None, None, None):
        limits = Limits(
            concurrent_requests=concurrent_requests,
            tokens_per_second=tokens_per_second,
            index_bytes=index_bytes,
        )
    changed, record, key = held.with_new_key(tenant, admin=admin, note=note, limits=limits)
    changed.write(path)
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"{record.key_id} of {tenant!r} is in {path}; this is the only time the key is shown:"
    )
    typer.echo(key)


@app.command("list")
def list_keys(
    context: typer.Context,
    file: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List keys by their names; the keys themselves are not known."""
    path = _path(context, file)
    held = _read(path)
    if as_json:
        rows = [
            {
                "id": record.key_id,
                "tenant": record.tenant,
                "admin": record.admin,
                "created": record.created,
                "note": record.note,
            }
            for record in held.keys
        ]
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    table = Table("key", "tenant", "admin", "created", "note", box=None)
    for record in held.keys:
        made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.created))
        table.add_row(
            record.key_id, record.tenant, "yes" if record.admin else "", made, record.note
        )
    Console(soft_wrap=True).print(table)


@app.command()
def revoke(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Its name, as 'suffixspec keys list' shows it.")],
    file: FileOption = None,
) -> None:
    """Take a key away. A running service refuses it within a second."""
    path = _path(context, file)
    _read(path).without(key).write(path)
    Console(stderr=True, highlight=False).print(f"{key} is revoked")


def _path(context: typer.Context, file: Path | None) -> Path:
    loaded: LoadedSettings = context.obj
    return file or loaded.settings.service.keys_file or DEFAULT_FILE


def _read(path: Path) -> KeyFile:
    if not path.exists():
        raise ConfigError(f"keys_file: there is no {str(path)!r}; 'suffixspec keys add' makes it")
    return KeyFile.read(path)
