"""`/health` and `/metrics`: how the server is doing. They answer while texts are generated."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from cutaway.serve.service import Served

router = APIRouter()


@router.head("/health", include_in_schema=False)  # what many a health check sends
@router.get("/health")
async def health(service: Served) -> JSONResponse:
    """Whether requests get answers, and how many texts there are."""
    scheduler = service.scheduler
    data = {
        "status": "ok" if scheduler.alive else "stopped",
        "model": service.name,
        "running": scheduler.n_running,
        "waiting": scheduler.n_waiting,
    }
    return JSONResponse(data, 200 if scheduler.alive else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Served) -> PlainTextResponse:
    """Counters in the text format of Prometheus."""
    text = service.metrics.text(service.scheduler.n_running, service.scheduler.n_waiting)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
