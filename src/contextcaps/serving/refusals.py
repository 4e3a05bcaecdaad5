"""Requests that are refused: a status, a word for programs, a sentence for people."""

from typing import Any

from starlette.responses import JSONResponse

__all__ = ["Refused", "refusal"]


class Refused(Exception):
    """A request is not answered as it wants; what it gets instead.

    Args:
        status: of HTTP.
        code: one word for programs, which stays as it is.
        message: a sentence for people.
        retry_after: seconds after which to come again.
        more: further fields of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after: int | None = None, more: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        self.more = more or {}


def refusal(error: Refused) -> JSONResponse:
    """Return the answer that says so."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="contextcaps"'
    return JSONResponse({"error": error.message, "code": error.code, **error.more}, error.status, headers)
