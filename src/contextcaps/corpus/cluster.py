"""Start Ray on this machine, or reach a cluster; nothing is reported to anybody.

Ray's ports are open on all of a machine's addresses. A cluster that is started here asks for a token that only its own
processes have; of one that is reached by its address, whoever started it has decided (RAY_AUTH_MODE).
"""

import contextlib
import importlib.util
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

from contextcaps.extras import import_extra

__all__ = ["connected", "import_ray", "require_ray"]

_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
"""Address of a cluster of this machine alone; Ray replaces 127.0.0.1 by the machine's address in the network."""


def require_ray() -> None:
    """Raise ImportError, which names the extra, where Ray or what it needs is not installed; import nothing of Ray."""
    if importlib.util.find_spec("ray") is None:
        import_extra("ray", "ray", "--engine ray")
    for name in ("pyarrow", "fsspec"):
        import_extra(name, "ray", "--engine ray")


def import_ray() -> ModuleType:
    """Import Ray with its data sets, with its usage statistics off."""
    # Before the import: Ray reads them once.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong comes as an exception, too
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of what it will change one day
    ray = import_extra("ray", "ray", "--engine ray")
    import_extra("ray.data", "ray", "--engine ray")
    return ray


@contextlib.contextmanager
def connected(address: str | None, store_bytes: int, cores: int | None = None) -> Iterator[ModuleType]:
    """Start a cluster of this machine alone, or connect to one; leave it at the end.

    Args:
        address: of a cluster, such as 127.0.0.1:6379, or auto; None starts one that ends with this block.
        store_bytes: memory of the object store, in which decoded images wait, of a cluster that is started.
        cores: that a cluster which is started may use; all by default.

    Raises:
        OSError: there is no cluster at the address.
    """
    if address is None:  # before the import: Ray reads them once
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = import_ray()
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=cores,
                object_store_memory=store_bytes,
                include_dashboard=False,
                _node_ip_address=_LOOPBACK,
                **quiet,
            )
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = "on this machine" if address is None else f"at {address}; start one with: ray start --head"
        raise OSError(f"--engine ray: no cluster {place} ({str(error).strip().splitlines()[0]})") from None
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.target_max_block_size = None  # a block of ours is a block of Ray's, however large
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*ray_remote_args")  # there is no other way yet to bound retries
            yield ray
    finally:
        ray.shutdown()
