"""The command line. It only composes: each command lives in :mod:`suffixspec.commands`.

Exit codes: 0 done, 2 wrong input or configuration, 130 interrupted, else a fault of ours.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from suffixspec.commands import config, index, keys
from suffixspec.logs import configure_logging
from suffixspec.settings import LoadedSettings, load_settings, parse_assignments
from suffixspec_index.errors import ConfigError, MissingDependencyError, SuffixSpecError

EXIT_WRONG_INPUT = 2

_LAZY_COMMANDS = {
    "replay": "Replay recorded agent traces and show what speculation would have gained.",
    "tune": "Find the thresholds that suit your own traces, judged on held-out sessions.",
    "profile": "Measure what a step of a model costs, for replay, tune and the engine.",
    "record": "Record agent sessions with a local model, token ids included.",
    "serve": "Serve completions and drafts over HTTP and gRPC.",
    "bench": "Measure what speculation gains, in this process or on a server.",
    "generate": "Watch a model write, with the tokens that speculation gained marked.",
    "check-lossless": "Compare outputs with and without speculation, token for token.",
    "synthesize": "Generate larger synthetic workloads for load tests.",
}
"""Imported when called, so that a missing extra never breaks ``--help`` and start-up is quick."""

_OPTIONS_BEFORE = ("--config", "--set", "--verbose", "-v")

app = typer.Typer(
    name="suffixspec",
    help="Speculation for agentic LLM workloads, centred on suffix trees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(config.app, name="config")
app.add_typer(keys.app, name="keys")
app.add_typer(index.app, name="index")


def main() -> None:
    """Run the command line: one line for an error of the caller's, a traceback for one of ours."""
    try:
        app(prog_name="suffixspec")
    except SuffixSpecError as error:
        message = Text.assemble(("error: ", "bold red"), " ".join(str(error).split()))
        Console(stderr=True, soft_wrap=True).print(message)
        sys.exit(EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suffixspec {importlib.metadata.version('suffixspec')}")
        raise typer.Exit


@app.callback()
def _prepare(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings file. Default: suffixspec.toml, if present."
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set one setting, e.g. speculative.method=ngram."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is being done, to standard error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    flags = parse_assignments(assignments or [])
    if verbose:
        flags["log.level"] = "debug"
    loaded = load_settings(config_file, flags=flags)
    configure_logging(loaded.settings.log)
    context.obj = loaded


def _module_of(name: str) -> str:
    return f"suffixspec.commands.{name.replace('-', '_')}"


def _add_lazy_command(name: str, summary: str) -> None:
    """Add a command that hands its arguments to the one in ``suffixspec.commands.<name>``."""

    def run(context: typer.Context) -> None:
        run_command(name, context.args, context.obj)

    app.command(
        name,
        help=summary,
        add_help_option=False,  # --help is the real command's
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "allow_interspersed_args": False,
        },
    )(run)


def run_command(name: str, args: list[str], settings: LoadedSettings) -> None:
    """Import the command and run it; it finds the settings as ``typer.Context.obj``.

    Raises:
        MissingDependencyError: the command needs a package that is not installed.
    """
    try:
        module = importlib.import_module(_module_of(name))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("suffixspec"):
            raise  # a fault of ours, not a missing package
        raise MissingDependencyError(
            f"{name}: needs the package {error.name!r}, which is not installed; "
            "run: pip install 'suffixspec[engine]'"
        ) from error
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    single.command(name)(getattr(module, name.replace("-", "_")))
    command = typer.main.get_command(single)
    try:
        code = command.main(
            args, prog_name=f"suffixspec {name}", standalone_mode=False, obj=settings
        )
    except Exception as error:
        option = getattr(error, "option_name", None)  # of an option that the command does not know
        if option not in _OPTIONS_BEFORE:
            raise
        raise ConfigError(
            f"{option}: belongs before the command: suffixspec {option} ... {name} ..."
        ) from None
    if isinstance(code, int) and code:
        raise typer.Exit(code)


for _name, _summary in _LAZY_COMMANDS.items():
    if importlib.util.find_spec(_module_of(_name)) is not None:
        _add_lazy_command(_name, _summary)
