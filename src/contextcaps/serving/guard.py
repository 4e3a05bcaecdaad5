"""What every request passes first: who may ask, from where, how long it may take; and what every answer says.

A plain ASGI application around the others.
"""

import base64
import binascii
import contextlib
import hmac
import time
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contextcaps.serving.config import is_loopback
from contextcaps.serving.refusals import Refused, refusal
from contextcaps.serving.service import Service

__all__ = ["OPEN", "Guard"]

OPEN = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/health"})
"""Paths that need no token, besides the page's files: they tell nothing of photographs, and compute nothing."""

_SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_DRAINED = 128 * 2**20
"""Bytes of a refused body that are read at most."""
_DRAIN_SECONDS = 3.0


class Guard:
    """Refuses requests of strangers, ends those that take too long, and counts all.

    Args:
        app: answers.
        service: has the limits, and counts.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        config = self.config = service.config
        self._hosts = {"localhost", "127.0.0.1", "::1", config.host} if is_loopback(config.host) else None
        self._token = None if config.secret is None else config.secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, is_read = time.monotonic(), 0, False

        async def noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.body" and not is_read and status >= 400:
                await send({**message, "more_body": True})
                await _drain(scope, noting)
                message = {"type": "http.response.body", "body": b""}
            elif message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _SAFE.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            with anyio.fail_after(self.config.time_limit):
                await self._answer(scope, noting, safely)
        except TimeoutError:
            if not status:
                late = Refused(503, "too_late", f"not done within {self.config.time_limit:g} s; come again", 5)
                await refusal(late)(scope, receive, safely)
        finally:
            # A path that is unknown would be a new name for each; that of the route has no part of the client's.
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.labels(route, str(status or "gone")).inc()
            self.service.metrics.seconds.labels(route).observe(time.monotonic() - begun)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._require_allowed(scope)
        except Refused as error:
            await refusal(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _require_allowed(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            # A page elsewhere can let its own name lead to this machine; the browser then sends that name.
            raise Refused(421, "host", "this server is for this machine only: call it localhost or 127.0.0.1")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refused(403, "origin", "pages of other sites may not use this server")
        if self._token is None or scope["path"] in OPEN or scope["path"].startswith("/page/"):
            return
        if not hmac.compare_digest(_token_of(headers).encode("latin-1", "replace"), self._token):
            raise Refused(401, "token", "expected this server's token: Authorization: Bearer TOKEN")


async def _drain(scope: Scope, receive: Receive) -> None:
    """Read what a refused client still sends, for a short while: one that only writes would not see the answer."""
    if "expect" in Headers(scope=scope):
        return  # it waits for leave to send
    count = 0
    with anyio.move_on_after(_DRAIN_SECONDS):
        while count < _DRAINED:
            message = await receive()
            count += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _token_of(headers: Headers) -> str:
    """Return the token that a client shows: as a bearer, or as the password of basic authentication."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2]
    return ""
