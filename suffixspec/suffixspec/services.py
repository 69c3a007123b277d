"""From settings to the parts of a service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from suffixspec.engines import load_target, step_cost
from suffixspec.settings import ServiceSettings, Settings
from suffixspec_index.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from suffixspec_engine.engine import Engine
    from suffixspec_index.sharing import Sharing, SharingConfig
    from suffixspec_service.config import ServiceConfig, TlsConfig
    from suffixspec_service.jobs import JobsConfig
    from suffixspec_service.runtime import Runtime


def service_config(settings: Settings) -> ServiceConfig:
    """How the service runs.

    Raises:
        ConfigError: a value is out of range, or one half of a certificate is missing.
        MissingDependencyError: the service's packages are not installed.
    """
    try:
        import fastapi  # noqa: F401 - asked for before anything is loaded
        import grpc  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"the service needs the package {error.name!r}; run: pip install "
            "'suffixspec[engine,service]'"
        ) from error
    from suffixspec_service.config import Limits, ServiceConfig

    given = settings.service
    return ServiceConfig(
        host=given.host,
        port=given.port,
        grpc_port=given.grpc_port,
        grpc_socket=given.grpc_socket,
        tls=_tls(given),
        keys_file=given.keys_file,
        api_keys=tuple(key.get_secret_value() for key in given.api_keys),
        allow_public_without_keys=given.allow_public_without_keys,
        limits=Limits(
            concurrent_requests=given.concurrent_requests,
            tokens_per_second=given.tokens_per_second,
            burst_tokens=given.burst_tokens,
            index_bytes=given.index_bytes,
        ),
        max_body_bytes=given.max_body_bytes,
        max_choices=given.max_choices,
        max_namespaces=given.max_namespaces,
        max_sessions=given.max_sessions,
        session_idle_seconds=given.session_idle_seconds,
        stream_cadence_ms=given.stream_cadence_ms,
        drain_seconds=given.drain_seconds,
        data_dir=given.data_dir,
    )


def make_runtime(
    settings: Settings, config: ServiceConfig, *, drafts_only: bool = False
) -> Runtime:
    """Load the model and put the service together. Nothing runs yet.

    Raises:
        ConfigError, MissingDependencyError: as for ``suffixspec_engine.models.load_model`` and
            :class:`~suffixspec_service.runtime.Runtime`.
    """
    from suffixspec_service.callers import Callers
    from suffixspec_service.drafting import DraftingConfig
    from suffixspec_service.monitor import MonitorConfig
    from suffixspec_service.runtime import Runtime
    from suffixspec_service.tracing import trace_to

    given = settings.service
    # What is wrong with a keys file or with sharing is found out before a model is loaded.
    Callers.of(config)
    sharing_config = _sharing_config(given)
    if given.traces_endpoint is not None:
        trace_to(given.traces_endpoint)
    keep = given.keep_text
    engine = None if drafts_only or given.model is None else _engine(settings, given.model)
    return Runtime(
        config,
        engine,
        speculative=settings.speculative,
        model_name=given.served_model_name or given.model,
        jobs_config=_jobs_config(settings, engine),
        drafting_config=DraftingConfig(**given.drafting.model_dump()),
        monitor_config=MonitorConfig(keep_text=keep) if keep is not None else None,
        chat_template=_read(given.chat_template),
        sharing=_sharing(given, sharing_config),
        learned_file=_learned_file(given),
    )


def _jobs_config(settings: Settings, engine: Engine | None) -> JobsConfig:
    """Jobs may use the tokenizer of the settings, and the served model's."""
    from suffixspec_service.jobs import JobsConfig

    config, given = JobsConfig(), settings.service
    offered = dict(config.tokenizers)
    if settings.tokenizer is not None:
        offered[settings.tokenizer] = _absolute(settings.tokenizer)
    if engine is not None and engine.model.tokenizer is not None and given.model is not None:
        offered[given.served_model_name or given.model] = _absolute(given.model)
    return replace(config, tokenizers=offered)


def _absolute(place: str) -> str:
    """A file or folder by its whole path: jobs run elsewhere. Other names as they are."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.exists() else place


def _sharing_config(given: ServiceSettings) -> SharingConfig:
    from suffixspec_index.sharing import SharingConfig

    try:
        return SharingConfig(**given.sharing.model_dump())
    except ConfigError as error:
        raise ConfigError(f"service.sharing.{error}") from None


def log_url(given: ServiceSettings) -> str | None:
    """Where a service with these settings keeps its sequences; ``None``: nowhere. ``journal`` is
    the one in its folder of data."""
    if given.log != "journal":
        return given.log
    folder = given.data_dir or Path(platformdirs.user_data_dir("suffixspec"))
    return f"journal:{folder / 'journal'}"


def _sharing(given: ServiceSettings, config: SharingConfig) -> Sharing | None:
    url = log_url(given)
    if url is None:
        return None
    from suffixspec_index.log import open_log
    from suffixspec_index.sharing import Sharing

    return Sharing(open_log(url), config)


def _learned_file(given: ServiceSettings) -> Path | None:
    """Beside the journal; where nothing is to outlive the service, nowhere."""
    from suffixspec_service.learned import FILE_NAME

    if given.data_dir is None and given.log != "journal":
        return None
    return (given.data_dir or Path(platformdirs.user_data_dir("suffixspec"))) / FILE_NAME


def _engine(settings: Settings, model: str) -> Engine:
    given = settings.service
    cost = step_cost(settings.cost_model)  # a wrong name is found out before a model is loaded
    target = load_target(
        model, dtype=given.dtype, threads=given.threads, max_model_len=given.max_model_len
    )
    from suffixspec_engine.engine import Engine
    from suffixspec_engine.engine_config import EngineConfig

    config = EngineConfig(
        max_running=given.max_running,
        max_waiting=given.max_waiting,
        cache_bytes=given.cache_bytes,
    )
    return Engine(target, speculative=settings.speculative, config=config, step_cost=cost)


def _tls(given: ServiceSettings) -> TlsConfig | None:
    from suffixspec_service.config import TlsConfig

    if given.tls_certificate is None and given.tls_key is None:
        return None
    if given.tls_certificate is None or given.tls_key is None:
        raise ConfigError("tls_certificate, tls_key: one is missing; give both or none")
    return TlsConfig(
        certificate=given.tls_certificate, key=given.tls_key, client_ca=given.tls_client_ca
    )


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: {str(path)!r} cannot be read ({error})") from None
