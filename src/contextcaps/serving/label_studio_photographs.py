"""Photographs of Label Studio's tasks, fetched from the one that `--label-studio` names and from nowhere else.

An address of a client is opened in one case only: it is below /data/ of that Label Studio. Redirections are not
followed. The key comes from the environment: a personal access token, which is exchanged for one of some minutes, as
Label Studio wants it (https://labelstud.io/guide/access_tokens), or a legacy token.
"""

import base64
import binascii
import json
import os
import re
import threading
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from contextcaps.serving.config import ServeConfig

__all__ = ["KEY", "TaskPhotographs", "photograph_address"]

KEY = "LABEL_STUDIO_API_KEY"
"""The environment has Label Studio's key under this name."""
_SECONDS = 10.0  # for a photograph
_DATA = re.compile(r"data:image/[\w.+-]+;base64,")
_MOST_TOKEN = 2**16  # bytes of an answer with a token


def photograph_address(given: str, studio: str | None) -> str:
    """Return where a task's photograph is to be had, if that may be opened.

    Args:
        given: what the task says.
        studio: address of the Label Studio that photographs may come from.

    Raises:
        ValueError: it is elsewhere.

    >>> photograph_address("/data/upload/1/a.jpg", "http://localhost:8080")
    'http://localhost:8080/data/upload/1/a.jpg'
    """
    if studio is None:
        raise ValueError("this server was started without --label-studio, so it fetches no photographs")
    base = studio.rstrip("/") + "/"
    own, wanted = urlsplit(base), urlsplit(urljoin(base, given.lstrip("/") if given.startswith("/data/") else given))
    path = unquote(wanted.path)
    is_plain = ".." not in path.split("/") and "\\" not in path and path.isprintable()
    if _origin(wanted) != _origin(own) or not path.startswith(f"{own.path}data/") or not is_plain:
        raise ValueError("the photograph is not in the Label Studio that this server knows")
    return wanted._replace(fragment="").geturl()


def _origin(address: SplitResult) -> tuple[str, str]:
    return address.scheme, address.netloc


class _NoRedirections(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirections)


class TaskPhotographs:
    """Fetches photographs; for several threads.

    Args:
        config: where from, and how large they may be.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._key = os.environ.get(KEY, "")
        self._access: str | None = None  # got for a personal access token
        self._exchanging = threading.Lock()

    def content(self, given: Any) -> bytes:
        """Return the file's bytes that a task names.

        Raises:
            ValueError: they cannot be had.
        """
        if not isinstance(given, str):
            raise ValueError("the task has no photograph where the configuration says")
        found = _DATA.match(given)
        if found is not None:
            try:
                return base64.b64decode(given[found.end() :], validate=True)
            except binascii.Error:
                raise ValueError("the photograph's data are no base64") from None
        address = photograph_address(given, self._config.label_studio)
        try:
            content = self._fetched(address)
        except urllib.error.HTTPError as error:
            raise ValueError(f"Label Studio answers {error.code} for the photograph") from None
        except OSError as error:
            raise ValueError(f"Label Studio cannot be reached: {error}") from None
        if len(content) > self._config.max_bytes:
            raise ValueError("the photograph is too large")
        return content

    def _fetched(self, address: str) -> bytes:
        access = self._access
        try:
            return _opened(address, self._config.max_bytes + 1, self._authorization())
        except urllib.error.HTTPError as error:
            if error.code != 401 or access is None:
                raise
        self._forget(access)  # its minutes are over
        return _opened(address, self._config.max_bytes + 1, self._authorization())

    def _authorization(self) -> str | None:
        """Return the header by which Label Studio knows us."""
        if self._key.count(".") != 2:  # not three parts, as tokens of the other kind have
            return f"Token {self._key}" if self._key else None
        with self._exchanging:
            if self._access is None:
                assert self._config.label_studio is not None
                address = f"{self._config.label_studio.rstrip('/')}/api/token/refresh/"
                answer = _opened(address, _MOST_TOKEN, None, json.dumps({"refresh": self._key}).encode())
                self._access = _access_of(answer)
            return f"Bearer {self._access}"

    def _forget(self, access: str) -> None:
        with self._exchanging:
            if self._access == access:
                self._access = None


def _access_of(answer: bytes) -> str:
    try:
        access = json.loads(answer)["access"]
    except (ValueError, TypeError, KeyError):
        access = None
    if not isinstance(access, str) or not access.isascii() or not access.isprintable():
        raise ValueError("Label Studio gives no access for the token in LABEL_STUDIO_API_KEY")
    return access


def _opened(address: str, most: int, authorization: str | None, body: bytes | None = None) -> bytes:
    headers = {"Authorization": authorization} if authorization else {}
    headers |= {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body, headers)  # noqa: S310  # http or https, see the settings
    with _opener.open(request, timeout=_SECONDS) as answer:
        content: bytes = answer.read(most)
    return content
