"""Routes for those who run the server: is it there, is it ready, what has it done."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from contextcaps.serving.refusals import Refused
from contextcaps.serving.service import Service

__all__ = ["operation_routes"]


def operation_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["for operators"])

    @router.get("/healthz", summary="Say that the process is alive.")
    async def healthz() -> JSONResponse:
        """Answer as long as there is an event loop that can."""
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", summary="Say whether requests are taken.", responses={503: {"description": "Not now."}})
    async def readyz() -> JSONResponse:
        """Answer 200 where the models are loaded and there is room for another photograph."""
        if not service.is_ready:
            raise Refused(503, "not_ready", "the models are not loaded, or the server stops", retry_after=2)
        if service.photographs.taken >= service.config.queue:
            raise Refused(503, "busy", "as many photographs are waiting as may wait", retry_after=1)
        return JSONResponse({"status": "ready", "models": list(service.engines)})

    @router.get("/metrics", summary="Give figures for Prometheus.", response_class=Response)
    async def metrics() -> Response:
        """Count requests, photographs, batches, and what is in memory; of all workers together."""
        service.metrics.taken.set(service.photographs.taken)
        service.metrics.bytes.set(service.bytes.taken)
        service.metrics.kept.set(service.kept.size)
        return Response(await service.aside(service.metrics.text), media_type=CONTENT_TYPE_LATEST)

    return router
