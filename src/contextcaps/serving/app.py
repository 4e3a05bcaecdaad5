"""The application: routes, errors, and what stands around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from contextcaps.serving.api import api_routes
from contextcaps.serving.config import ServeConfig
from contextcaps.serving.downloads import download_routes
from contextcaps.serving.engine import Engine
from contextcaps.serving.guard import Guard
from contextcaps.serving.label_studio import label_studio_routes
from contextcaps.serving.operations import operation_routes
from contextcaps.serving.pages import page_routes
from contextcaps.serving.photographs import photograph_routes
from contextcaps.serving.refusals import Refused, refusal
from contextcaps.serving.service import Service
from contextcaps.version import __version__

__all__ = ["create_app"]

_ABOUT = "Tags photographs, says why, and takes into account what is known of them. Answers are those of `contextcaps`."


def create_app(config: ServeConfig, engines: dict[str, Engine]) -> Guard:
    """Return the application of one process.

    Args:
        config: limits and secrets.
        engines: models by the names that clients have for them, the default first.
    """
    service = Service(config, engines)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="contextcaps",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
    )
    app.include_router(api_routes(service))
    app.include_router(photograph_routes(service))
    app.include_router(download_routes(service))
    app.include_router(operation_routes(service))
    app.include_router(label_studio_routes(service))
    app.include_router(page_routes())
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(HTTPException, _of_routes)
    return Guard(app, service)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ", ".join(str(each)[:80] for each in first["loc"])
    return refusal(Refused(422, "unreadable", f"{where}: {first['msg']}"))


async def _of_routes(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return JSONResponse({"error": str(error.detail), "code": "http"}, error.status_code, headers)


async def _gone(request: Request, error: Exception) -> Response:
    """Give an answer that nobody gets; it is counted."""
    return Response(status_code=499)
