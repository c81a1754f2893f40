"""The whole server as one ASGI app: the guard, around the API, the inside, the state, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.types import ASGIApp

from cutaway import __version__
from cutaway.language_model import LanguageModel
from cutaway.serve import api, inside, status, views
from cutaway.serve.guard import Guard
from cutaway.serve.limits import Limits
from cutaway.serve.reply import tell_errors
from cutaway.serve.service import Service

ROUTERS = (api.router, inside.router, status.router, views.router, views.drawing)
QUIET: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}  # nothing calls home


def build_app(
    model: LanguageModel, name: str, *, host: str = "127.0.0.1", key: str | None = None, limits: Limits | None = None
) -> ASGIApp:
    """The app that serves one model under a name; `app.state.service` is what it works with.

    Args:
        host: what the server is bound to.
        key: the API key, where one is asked for.
    """
    return guarded(build_inner(Service(model=model, name=name, limits=limits or Limits())), host=host, key=key)


def guarded(app: FastAPI, *, host: str, key: str | None) -> Guard:
    """The app behind its guard."""
    service: Service = app.state.service
    return Guard(app, host=host, key=key, limits=service.limits, metrics=service.metrics)


def build_inner(service: Service, exhibits: views.Exhibits | None = None) -> FastAPI:
    """The app without its guard; `exhibits` are what its page shows beside the model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.scheduler.start()
        try:
            yield
        finally:
            service.scheduler.stop()

    app = FastAPI(
        title="Cutaway",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages load their scripts from another host
        redoc_url=None,
        telemetry=QUIET,
    )
    app.state.service = service
    app.state.exhibits = exhibits or views.Exhibits()
    tell_errors(app)
    for router in ROUTERS:
        app.include_router(router)
    app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)(
        lambda: FileResponse(views.ASSETS["index.html"])
    )
    return app
