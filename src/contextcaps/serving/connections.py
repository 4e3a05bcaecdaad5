"""Connections of clients: one that begins a request and does not go on is closed; answers are sent at once."""

import asyncio
import contextlib
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection", "send_at_once"]

HEADER_SECONDS = 10.0
"""Time for the headers of a request, from the connection or from the last answer on."""


class Connection(H11Protocol):
    """uvicorn's connection, with a limit on the time until a request's headers are there."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        send_at_once(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come; where that is no whole head of a request, it may not last."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_watching(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self, *_: Any) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def send_at_once(transport: asyncio.BaseTransport) -> None:
    """Switch Nagle's algorithm off: it would keep an answer's body until the client has confirmed the headers, 40 ms.

    asyncio does so only for sockets that say they are TCP's; those that a listening socket accepts do not.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):  # such as a client that has gone
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
