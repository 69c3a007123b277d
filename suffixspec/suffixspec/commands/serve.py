"""``suffixspec serve``: the service, with everything it needs on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from suffixspec.logs import configure_logging
from suffixspec.services import make_runtime, service_config
from suffixspec.settings import LoadedSettings, LogSettings

if TYPE_CHECKING:
    from suffixspec_service.runtime import Runtime
    from suffixspec_service.server import Addresses


def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="smollm2, a GGUF file, a model's directory or a hub id."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What requests call the model.")
    ] = None,
    drafts_only: Annotated[
        bool, typer.Option("--drafts-only", help="Run no model: draft for other engines.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Of HTTP; 0: a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Of gRPC; 0: a free one.")] = None,
    grpc_socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A Unix socket for gRPC.")
    ] = None,
    keys_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys; see 'suffixspec keys'.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="URL", help="What is learned is kept there: journal, redis://..."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM; for HTTP and gRPC.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    allow_public_without_keys: Annotated[
        bool | None,
        typer.Option("--allow-public-without-keys", help="Whoever can connect may use everything."),
    ] = None,
    stream_cadence_ms: Annotated[
        int | None,
        typer.Option(help="Streams send one packet of constant size per so many ms; 0: off."),
    ] = None,
    keep_text: Annotated[
        bool | None,
        typer.Option(
            "--keep-text/--no-keep-text",
            help="Keep the text of recent sessions for the dashboard; by default only on loopback "
            "without keys.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
) -> None:
    """Serve completions and drafts over HTTP and gRPC until interrupted.

    By default only this machine can connect, and it needs no key.
    """
    loaded: LoadedSettings = context.obj
    flags = {
        "model": model,
        "served_model_name": served_model_name,
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "grpc_socket": _text(grpc_socket),
        "keys_file": _text(keys_file),
        "log": log,
        "tls_certificate": _text(tls_certificate),
        "tls_key": _text(tls_key),
        "allow_public_without_keys": allow_public_without_keys,
        "stream_cadence_ms": stream_cadence_ms,
        "keep_text": keep_text,
        "threads": threads,
    }
    loaded = loaded.with_flags({f"service.{name}": value for name, value in flags.items()})
    settings = loaded.settings
    if "log.level" not in loaded.origins or loaded.origins["log.level"] == "default":
        configure_logging(LogSettings(level="info", format=_log_format(loaded)))
    # gRPC is never used in a forked child here (jobs are programs of their own); without this it
    # warns at every fork. Read when grpc is imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from suffixspec_service.server import listen

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    config = service_config(settings)
    bound = listen(config)
    try:
        console.print(f"loading {settings.service.model if not drafts_only else 'no model'} ...")
        runtime = make_runtime(settings, config, drafts_only=drafts_only)
    except BaseException:
        bound.close()
        raise
    from suffixspec_service.server import serve as run_server

    def progress(text: str) -> None:
        console.print(text)

    def ready(addresses: Addresses) -> None:
        _announce(Console(highlight=False, soft_wrap=True), runtime, addresses)

    with _event_loop() as runner:
        finished = runner.run(run_server(runtime, bound, progress=progress, ready=ready))
    console.print("stopped" if finished else "stopped; some requests were cut off")


def _event_loop() -> asyncio.Runner:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _log_format(loaded: LoadedSettings) -> Literal["text", "json"]:
    """One JSON object per line, unless a person is watching or the format is set."""
    if loaded.origins.get("log.format", "default") != "default":
        return loaded.settings.log.format
    return "text" if sys.stderr.isatty() else "json"


def _announce(out: Console, runtime: Runtime, addresses: Addresses) -> None:
    """Where to look."""
    url = addresses.http
    name = runtime.model.name if runtime.model is not None else None
    out.print("suffixspec is ready" + (f" and serves {name}" if name else " and drafts"))
    if not runtime.callers.needs_key:
        out.print("  no API keys: whoever can connect may use everything")
    if name is not None:
        out.print(f"  OpenAI API  {url}/v1")
    out.print(f"  dashboard   {url}/")
    for address in addresses.grpc:
        out.print(f"  gRPC        {address}")
    out.print(f"  metrics     {url}/metrics")
    out.print(f"  health      {url}/healthz, {url}/readyz")
    out.file.flush()


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None
