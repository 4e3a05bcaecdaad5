"""The settings of the server: one dataclass, from which the command line's flags are made."""

import dataclasses
import ipaddress
import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["TOKEN", "ServeConfig", "is_loopback"]

_Number = Annotated[float, tyro.conf.arg(metavar="N")]
TOKEN = "CONTEXTCAPS_TOKEN"  # noqa: S105  # its name
"""The environment has the token under this name, where no flag gives it."""
_NAME = re.compile(r"[\w.-]{1,100}")


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Everything that the server depends on."""

    model: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]MODEL...")] = ()
    """Shipped models, folders of runs or models, or hf:OWNER/NAME; the first is taken where a request names none.
    A folder is called by its own name, or by NAME. By default all shipped models."""
    host: str = "127.0.0.1"
    """The address to listen at; one that other machines reach needs --token or --no-token."""
    port: int = 8000
    """The port to listen at; 0 for one that is free."""
    token: Annotated[str | None, tyro.conf.arg(metavar="SECRET")] = None
    """Clients have to know this; by default what the environment has as CONTEXTCAPS_TOKEN."""
    no_token: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Let everyone who reaches the address use it."""
    workers: int = 1
    """Processes that share the port; each has its own copy of the models, and one that dies is started again."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    max_megabytes: _Number = 32
    """Largest body of a request."""
    max_files: int = 64
    """Most photographs of a request."""
    max_megapixels: _Number = 50
    """Largest photograph, height × width; none above 89 is decoded in any case."""
    queue: int = 256
    """Most photographs that a process works on or has waiting; further requests are told to come again."""
    time_limit: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 30
    """Longest time that a request may take, from its first byte to its answer."""
    grace: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 20
    """Time for requests under way once the server is told to stop."""
    keep_megabytes: _Number = 256
    """Memory of a process for the features of photographs on the page."""
    label_studio: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Address of the Label Studio whose photographs are tagged, such as http://localhost:8080; its key is taken from
    the environment, LABEL_STUDIO_API_KEY."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("max_files", 1), ("queue", 1), ("port", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        for name in ("max_megabytes", "max_megapixels", "time_limit", "grace", "keep_megabytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        if self.port > 65535:
            raise ValueError(f"port: expected at most 65535, got {self.port}")
        if self.queue < self.max_files:
            raise ValueError(f"queue: expected at least max_files ({self.max_files}), got {self.queue}")
        secret = self.secret
        if secret is not None and (not secret.isascii() or not secret.isprintable() or len(secret) < 8):
            raise ValueError("token: expected 8 letters or more, of ASCII, that can be printed")
        if self.token is not None and self.no_token:
            raise ValueError("no_token: there is a token; leave one of them out")
        if self.label_studio is not None and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", self.label_studio):
            raise ValueError(
                f"label_studio: expected an address such as http://localhost:8080, got {self.label_studio!r}"
            )
        if not is_loopback(self.host) and secret is None and not self.no_token:
            raise ValueError(
                f"host: other machines can reach {self.host}; add --token SECRET, which clients have to know, or "
                "--no-token, if everyone may use it"
            )
        if self.model:
            _ = self.models  # refuses what is no name

    @property
    def secret(self) -> str | None:
        """The token that clients have to know; None where everyone may use the server."""
        return self.token or (None if self.no_token else os.environ.get(TOKEN) or None)

    @property
    def models(self) -> dict[str, str]:
        """Return the models that clients may ask for: name → what to load, the first one by default."""
        from contextcaps.models.loading import shipped_names  # not for --help, which need not wait for it

        found: dict[str, str] = {}
        for given in self.model or shipped_names():
            name, equals, place = given.partition("=")
            if not equals or not _NAME.fullmatch(name):
                place = given
                name = given if given in shipped_names() else _called(given)
            if not _NAME.fullmatch(name):
                raise ValueError(f"model: {given}: has no name that clients could use; give one: NAME={given}")
            if name in found:
                raise ValueError(f"model: two of them are called {name}; give one another name: NAME={given}")
            found[name] = place
        if not found:
            raise ValueError("model: this copy of contextcaps was installed without models; name a run or a model")
        return found

    @property
    def max_bytes(self) -> int:
        """Largest body of a request in bytes."""
        return int(self.max_megabytes * 2**20)

    @property
    def max_pixels(self) -> int:
        """Largest height × width of a photograph."""
        return int(self.max_megapixels * 1e6)

    def to_json(self) -> str:
        """Return it as text that `from_json` reads: for a worker process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ServeConfig":
        """Return what `to_json` has written."""
        document = json.loads(text)
        return cls(**{**document, "model": tuple(document["model"])})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _called(place: str) -> str:
    """Return what a model is called where nobody says it: the folder's name, that of the run for its model."""
    from contextcaps.models.loading import HUB

    path = Path(place.removeprefix(HUB)).expanduser()
    path = path if place.startswith(HUB) else path.resolve()
    return path.parent.name if path.name == "model" else path.name
