"""Run the server: one process, or several that share a port and are started again where they die."""

import contextlib
import os
import socket
import tempfile
import webbrowser
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from contextcaps.serving.config import ServeConfig

__all__ = ["create_worker", "serve", "settings_of"]

_CONFIG = "CONTEXTCAPS_SERVE"  # in the environment of a worker: its settings
_FIGURES = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 1024  # connections that wait to be accepted
_HEALTHY_SECONDS = 30
"""Time in which a worker has to answer its supervisor; one that starts on a busy machine is slow, and not dead."""


def serve(config: ServeConfig, opens: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what is under way.

    Args:
        config: what to serve, where.
        opens: show the page in a browser.
    """
    from contextcaps.serving.opening import open_engine

    engines = {name: open_engine(name, place, config.device) for name, place in config.models.items()}
    listening = _listen(config)
    address = _address(config.host, listening.getsockname()[1])
    print(f"contextcaps serves {', '.join(engines)} at {address}", flush=True)
    if opens:
        webbrowser.open(address)
    if config.workers == 1:
        from contextcaps.serving.app import create_app

        uvicorn.Server(settings_of(config, create_app(config, engines))).run([listening])
        return
    engines.clear()  # they were loaded to see that they can be; each worker has its own
    with _environment(config):
        Multiprocess(settings_of(config, "contextcaps.serving.server:create_worker"), [listening]).run()


def settings_of(config: ServeConfig, app: ASGIApp | str) -> uvicorn.Config:
    """Return uvicorn's settings for an application, or for the name of a function that makes one in a worker."""
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=config.workers,
        http="contextcaps.serving.connections:Connection",
        ws="none",
        loop="asyncio",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(config.grace)),
        timeout_worker_healthcheck=_HEALTHY_SECONDS,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=32 * 1024,
    )


def create_worker() -> ASGIApp:
    """Return the application of a worker process, whose settings are in the environment."""
    from contextcaps.serving.app import create_app
    from contextcaps.serving.opening import open_engine

    config = ServeConfig.from_json(os.environ[_CONFIG])
    models = config.models.items()
    return create_app(config, {name: open_engine(name, place, config.device, config.workers) for name, place in models})


def _listen(config: ServeConfig) -> socket.socket:
    """Return a socket that listens; all workers accept from it."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        raise ValueError(f"{config.host}, port {config.port}: {error.strerror}; try another --port") from None
    listening.listen(_BACKLOG)
    listening.set_inheritable(True)
    return listening


def _address(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else "localhost" if host == "127.0.0.1" else host
    return f"http://{shown}:{port}/"


@contextlib.contextmanager
def _environment(config: ServeConfig) -> Iterator[None]:
    """Tell workers their settings, and where they count together."""
    with tempfile.TemporaryDirectory(prefix="contextcaps-", ignore_cleanup_errors=True) as figures:
        os.environ |= {_CONFIG: config.to_json(), _FIGURES: figures}
        try:
            yield
        finally:
            for name in (_CONFIG, _FIGURES):
                os.environ.pop(name, None)
