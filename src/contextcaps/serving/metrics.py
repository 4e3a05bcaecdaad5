"""Figures of the server for Prometheus. Several workers add theirs up through files in a folder of their own.

That folder is named by the environment, PROMETHEUS_MULTIPROC_DIR, before this module is imported.
"""

import contextlib
import os
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["FOLDER", "Metrics"]

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_OF_LIVING = re.compile(r"gauge_live\w+_(\d+)\.db")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counts what happens in this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.requests = Counter(
            "contextcaps_requests", "Requests that were answered.", ("route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "contextcaps_request_seconds", "Time to the answer.", ("route",), registry=registry, buckets=_SECONDS
        )
        self.photographs = Counter(
            "contextcaps_photographs", "Photographs that were looked at.", ("outcome",), registry=registry
        )
        self.batches = Histogram(
            "contextcaps_batch_photographs", "Photographs of a batch.", registry=registry, buckets=(1, 2, 4, 8, 12, 16)
        )
        self.taken = Gauge(
            "contextcaps_photographs_taken",
            "Photographs that are worked on or waiting.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.bytes = Gauge(
            "contextcaps_body_bytes", "Bytes of bodies in memory.", registry=registry, multiprocess_mode="livesum"
        )
        self.kept = Gauge(
            "contextcaps_kept_bytes", "Bytes of features kept.", registry=registry, multiprocess_mode="livesum"
        )

    def text(self) -> bytes:
        """Return all figures, of all workers, as Prometheus reads them."""
        folder = os.environ.get(FOLDER)
        if folder is None:
            return generate_latest(self._registry)
        _forget_dead(Path(folder))
        together = CollectorRegistry()
        MultiProcessCollector(together, folder)
        return generate_latest(together)


def _forget_dead(folder: Path) -> None:
    """Leave out what is true only of workers that live; what they have counted stays."""
    for path in folder.glob("gauge_live*.db"):
        found = _OF_LIVING.fullmatch(path.name)
        if found is None:
            continue
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        except PermissionError:
            pass
