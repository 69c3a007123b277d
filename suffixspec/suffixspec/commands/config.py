"""``suffixspec config``: what is configured, and where it was configured."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from suffixspec.settings import LoadedSettings

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.callback()
def _config() -> None:
    """Look at the configuration."""


@app.command()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective settings and where each came from."""
    loaded: LoadedSettings = context.obj
    values = loaded.flat()
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(loaded.file) if loaded.file else None,
                    "settings": loaded.settings.model_dump(mode="json"),
                    "origins": dict(loaded.origins),
                },
                indent=2,
            )
        )
        return
    table = Table("setting", "value", "from")
    for name, value in values.items():
        origin = loaded.origins[name]
        style = "dim" if origin == "default" else ""
        table.add_row(name, json.dumps(value), origin, style=style)
    Console().print(table)
