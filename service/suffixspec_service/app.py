"""The HTTP application: routers of every room, one way to authenticate, one shape of errors."""

from __future__ import annotations

from fastapi import FastAPI

from suffixspec_service.api import models, operations, problems, speculation
from suffixspec_service.api.limits import AccessLog, BodyLimit
from suffixspec_service.api.reading import Reading
from suffixspec_service.dashboard import routes as dashboard_routes
from suffixspec_service.jobs import routes as jobs_routes
from suffixspec_service.monitor import routes as monitor_routes
from suffixspec_service.runtime import Runtime
from suffixspec_service.version import version


def create_app(runtime: Runtime) -> FastAPI:
    """The application over a runtime, which it neither starts nor closes."""
    app = FastAPI(
        title="suffixspec",
        version=version(),
        summary="OpenAI-compatible completions with speculation from suffix trees",
        docs_url=None,  # its assets come from elsewhere
        redoc_url=None,
    )
    app.state.runtime = runtime
    app.state.reading = Reading(runtime)
    problems.install(app)
    app.include_router(operations.router)
    app.include_router(models.router)
    app.include_router(speculation.router)
    if runtime.engine is not None:  # their imports load torch, which drafting does not need
        from suffixspec_service.api import chat, completions, responses

        app.include_router(chat.router)
        app.include_router(completions.router)
        app.include_router(responses.router)
    app.include_router(monitor_routes.router)
    app.include_router(jobs_routes.router)
    app.include_router(dashboard_routes.router)
    app.add_middleware(BodyLimit, most=runtime.config.max_body_bytes)
    app.add_middleware(AccessLog)
    return app
