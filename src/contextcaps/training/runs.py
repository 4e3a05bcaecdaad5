"""A run: the folder in which everything about one training is kept."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from contextcaps.atomic import write_atomically
from contextcaps.data.cache import entry_lock
from contextcaps.plain_files import parse_json, read_text
from contextcaps.suggestions import did_you_mean_run
from contextcaps.training.checkpoints import Checkpoints
from contextcaps.training.config import TrainConfig
from contextcaps.version import __version__

__all__ = ["Failure", "FailureKind", "Run", "RunError", "RunState", "State", "now", "require_writable", "versions"]

State = Literal["running", "finished", "stopped", "failed"]
FailureKind = Literal["diverged", "out_of_memory", "disk_full", "error"]
SEEN_FILE = "seen.npz"
"""Name of the file with the fingerprints of the images that a run has learned from."""
_KINDS: dict[str, type] = {
    **dict.fromkeys(("seed", "parameters", "processes", "classes"), int),
    **dict.fromkeys(("data", "model", "device", "precision", "begun", "ended", "elastic"), str),
    **dict.fromkeys(("failure", "fingerprints", "contents", "images", "memory", "versions"), dict),
    "command": list,
}
"""Types of the facts in run.json."""
_VALUES: dict[str, type] = {
    **dict.fromkeys(("failure", "fingerprints", "contents", "versions"), str),
    "images": int,
    "memory.bytes": int,
    "memory.capacity": int,
}
"""Types of the values in those that are names and values, of all or of one."""
_PACKAGES = ("torch", "pytorch-lightning", "numpy", "pillow", "kornia", "safetensors", "timm")


class RunError(ValueError):
    """A folder that cannot be used as a run; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    kind: FailureKind
    message: str
    """For people."""


@dataclasses.dataclass(frozen=True)
class RunState:
    """The content of a run's run.json."""

    state: State | None
    """None before the training has begun. A process that was killed leaves "running"."""
    failure: Failure | None
    """Why it failed, if it did."""
    facts: dict[str, Any]
    """All of it, as it is in the file."""

    @classmethod
    def read(cls, folder: Path) -> "RunState":
        """Read a folder's run.json; without one, no training has begun there.

        Raises:
            RunError: the file is damaged, or something else.
        """
        path = folder / "run.json"
        try:
            facts = parse_json(read_text(path))
            if not isinstance(facts, dict):
                raise ValueError(f"expected an object, got {type(facts).__name__}")
            for name, kind in _KINDS.items():
                if name not in facts:
                    continue
                _require_kind(name, facts[name], kind)
                for inner, value in facts[name].items() if kind is dict else ():
                    _require_kind(f"{name}.{inner}", value, _VALUES.get(name, _VALUES.get(f"{name}.{inner}", object)))
            if facts.get("memory", {}).get("where") == "GPU" and not {"bytes", "capacity"} <= facts["memory"].keys():
                raise ValueError("memory: expected bytes and capacity of the GPU")
            state = facts.get("state")
            if state not in (None, *get_args(State)):
                raise ValueError(f"state: expected one of {', '.join(get_args(State))}, got {state!r}")
            failure = Failure(**facts["failure"]) if "failure" in facts else None
            if failure is not None and failure.kind not in get_args(FailureKind):
                raise ValueError(f"failure: expected one of {', '.join(get_args(FailureKind))}, got {failure.kind!r}")
        except FileNotFoundError:
            return cls(None, None, {})
        except (OSError, ValueError, TypeError) as error:
            raise RunError(
                f"{path}: run.json is damaged ({error}); remove it, and write it anew with: "
                f"contextcaps train --resume {folder}"
            ) from None
        return cls(state, failure, facts)

    @property
    def has_diverged(self) -> bool:
        """Whether the training ended because its loss or weights became infinite or no numbers."""
        return self.state == "failed" and self.failure is not None and self.failure.kind == "diverged"


def _require_kind(name: str, value: Any, kind: type) -> None:
    """Refuse a fact of another type."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")


class Run:
    """The folder of one training run.

        config.yaml   the whole configuration, as it was resolved; network.yaml has the network's
        run.json      seed, versions, commit, data, state (`RunState`)
        metrics.csv   one row per epoch; timing.csv has the seconds
        curves.png    loss and mAP by epoch
        tensorboard/  the same, and the loss between epochs
        checkpoints/  last, previous, best
        model/        the exported model

    Args:
        folder: where.
        config: what it is run with.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.model_folder = folder / "model"
        self.facts: dict[str, Any] = {}

    @classmethod
    def create(cls, config: TrainConfig) -> "Run":
        """Make a new run's folder, and write its configuration into it."""
        cls.require_free(config)
        folder = _new_folder(config) if config.out is None else Path(config.out).expanduser()
        config = dataclasses.replace(config, out=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, config)
        with run.locked():
            if (folder / "config.yaml").exists():
                raise RunError(f"{folder}: another training has just begun here; choose another folder with --out")
            write_atomically(folder / "config.yaml", config.to_yaml())
        return run

    @staticmethod
    def require_free(config: TrainConfig) -> None:
        """Refuse a folder for a new run that is taken or cannot be written to; make nothing."""
        folder = Path("runs") if config.out is None else Path(config.out).expanduser()
        require_writable(folder, "--out")
        if config.out is None:
            return
        if (folder / "config.yaml").exists():
            raise RunError(
                f"{folder}: holds a run already; go on with it by `contextcaps train --resume {folder}`, "
                "or choose another folder with --out"
            )
        if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise RunError(f"{folder}: expected an empty or a new folder for the run; choose another with --out")

    @classmethod
    def open(cls, folder: Path | str) -> "Run":
        """Open an existing run."""
        folder = Path(folder).expanduser()
        path = folder / "config.yaml"
        if not folder.is_dir():
            hint = did_you_mean_run(folder) or "expected a run made by `contextcaps train`"
            raise RunError(f"{folder}: no such folder; {hint}")
        if not path.is_file():
            raise RunError(f"{folder}: not a run: it has no config.yaml; expected a folder made by `contextcaps train`")
        try:
            run = cls(folder, TrainConfig.from_yaml(path))
        except ValueError as error:
            raise RunError(str(error)) from None
        run.facts = RunState.read(folder).facts
        return run

    def reconfigure(self, config: TrainConfig) -> None:
        """Take another configuration, and write it where the first one is."""
        if config != self.config:
            self.config = config
            write_atomically(self.folder / "config.yaml", config.to_yaml())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock: nobody else trains into it meanwhile."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(entry_lock(self.folder, "run"))
            except BlockingIOError:
                raise RunError(
                    f"{self.folder}: another training is writing into this run; wait for it, or choose another "
                    "folder with --out"
                ) from None
            yield

    def discard(self) -> None:
        """Remove a run that came to nothing before its first step, so that its folder can be used."""
        if self.checkpoints.folder.exists():
            return
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        for name in ("config.yaml", "network.yaml", "run.json", SEEN_FILE, ".run.lock"):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # only if nothing else is in it

    def keep_places(self) -> None:
        """Write into config.yaml where the data are now, if they have moved."""
        path = self.folder / "config.yaml"
        written = TrainConfig.from_yaml(path)
        moved = dataclasses.replace(written, data=self.config.data, val_data=self.config.val_data)
        if moved != written:
            write_atomically(path, moved.to_yaml())

    def record(self, **facts: Any) -> None:
        """Add to what run.json says; None takes a fact out."""
        known = {"seed": self.config.seed, **self.facts, **facts}
        self.facts = {name: value for name, value in known.items() if value is not None}
        write_atomically(self.folder / "run.json", json.dumps(self.facts, indent=2, ensure_ascii=False) + "\n")


def require_writable(folder: Path, flag: str) -> None:
    """Refuse a folder that could not be made or written into, by the nearest of its parents that is there."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise RunError(f"{folder}: {there} is a file; expected a folder; choose another with {flag}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{folder}: {there} may not be written to; choose another folder with {flag}")


def versions() -> dict[str, str]:
    """Return the versions of this package, its commit where it is known, Python, platform and packages that matter."""
    found = {"contextcaps": __version__, "python": platform.python_version()}
    commit = _commit()
    if commit is not None:
        found["commit"] = commit
    found["platform"] = f"{platform.system()} {platform.machine()}"
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def now() -> str:
    """Return the time, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _commit() -> str | None:
    """Return the commit of the source tree that this package runs from, with a + if it was changed since, or None."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):

        def git(*words: str) -> str:
            done = subprocess.run(
                ["git", "-C", str(root), *words],  # noqa: S607  # whichever git there is
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
            return done.stdout.strip()

        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    return None


def _new_folder(config: TrainConfig) -> Path:
    """Make a folder with the first free name under runs/."""
    kind = config.data.partition(":")[0].partition("?")[0]
    number = 1
    while True:
        folder = Path("runs", f"{config.model}-{kind}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)  # at once, so that another training takes the next number
            return folder
        number += 1
