"""The HTTP application: routers of every room, one way to authenticate, one shape of errors."""

from __future__ import annotations

import importlib.metadata

from fastapi import FastAPI

from suffixspec_service.api import operations, problems
from suffixspec_service.runtime import Runtime


def create_app(runtime: Runtime) -> FastAPI:
    """The application over a runtime, which it neither starts nor closes."""
    app = FastAPI(
        title="suffixspec",
        version=importlib.metadata.version("suffixspec"),
        summary="OpenAI-compatible completions with speculation from suffix trees",
        docs_url=None,  # its assets come from elsewhere
        redoc_url=None,
    )
    app.state.runtime = runtime
    problems.install(app)
    app.include_router(operations.router)
    return app
