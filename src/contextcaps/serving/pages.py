"""The page and its files, read once from the package; no path of a client is ever opened."""

import hashlib
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["page_routes"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_AT = {"index.html": "/", "reference.html": "/docs"}
"""File → its address; all others are below /page/."""


def page_routes() -> APIRouter:
    """Return a route for each file of the page."""
    router = APIRouter(include_in_schema=False)
    for file in sorted(resources.files("contextcaps.serving").joinpath("page").iterdir(), key=lambda each: each.name):
        kind = _KINDS.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            _add(router, _AT.get(file.name, f"/page/{file.name}"), file.read_bytes(), kind)
    return router


def _add(router: APIRouter, address: str, content: bytes, kind: str) -> None:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # asked for again each time, sent only when it is another

    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    router.add_api_route(address, file, methods=["GET", "HEAD"])
