"""Find a trained model: shipped with the package, in a run, in a folder of its own, or, as `hf:…`, on the Hub."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from contextcaps.extras import import_extra
from contextcaps.models.config import ModelConfig
from contextcaps.models.files import CONFIG_FILE, WEIGHTS_FILE, ModelFileError, read_config
from contextcaps.models.trained import TRAINED_FILE, Trained
from contextcaps.rank_zero import is_rank_zero
from contextcaps.suggestions import did_you_mean, did_you_mean_run

if TYPE_CHECKING:
    import torch

    from contextcaps.models.network import CapsuleNetwork

__all__ = [
    "DEFAULT_MODEL",
    "HUB",
    "SHIPPED",
    "kind_of_folder",
    "load_config",
    "load_model",
    "model_folder",
    "shipped_folder",
    "shipped_names",
]

DEFAULT_MODEL = "coco80"
"""The shipped model that is taken where none is named."""

SHIPPED = Path(__file__).parent / "shipped"
"""The folder with the models that are part of the package, each in a folder of its name."""

HUB = "hf:"
"""The name of a model on the Hugging Face Hub begins with it."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def shipped_names() -> list[str]:
    """Return the names of the models that are part of the package, the default first."""
    folders = SHIPPED.iterdir() if SHIPPED.is_dir() else ()
    names = sorted(folder.name for folder in folders if (folder / CONFIG_FILE).is_file())
    return sorted(names, key=lambda name: name != DEFAULT_MODEL)


def shipped_folder(model: str | Path) -> Path | None:
    """Return the folder of the shipped model of this name; None if there is none, or a path is given."""
    return SHIPPED / model if isinstance(model, str) and model in shipped_names() else None  # COCO80 is no name


def load_model(
    path: str | Path = DEFAULT_MODEL, device: "str | torch.device" = "cpu"
) -> "tuple[CapsuleNetwork, Trained | None]":
    """Load a network, and what training left beside it, where it left anything; without that, warn.

    Args:
        path: a shipped model's name, a run's folder, a model's as `save_pretrained` writes it, or `hf:OWNER/NAME` on
            the Hugging Face Hub. A folder that is called as a shipped model is reached as "./NAME".
        device: where the weights go.

    Raises:
        ModelFileError: there is no model, or it cannot be read.
        ImportError: PyTorch is not installed.
    """
    import_extra("torch", "train", f"{path}: its network")
    from contextcaps.models.network import CapsuleNetwork

    name = _name_on_hub(path)
    if name is not None:
        from contextcaps.models.hub import fetch_trained

        network = CapsuleNetwork.from_pretrained(name, device=device)
        trained = fetch_trained(name, network.config)
    else:
        folder = model_folder(path)
        network = CapsuleNetwork.from_pretrained(folder, device=device)
        trained = Trained.read(folder, network.config)
    if trained is None and is_rank_zero():
        print(
            f"warning: {path}: nothing says that this model was ever trained (it has no {TRAINED_FILE}); if it was "
            "not, its scores mean nothing",
            file=sys.stderr,
            flush=True,
        )
    return network, trained


def load_config(path: str | Path) -> ModelConfig:
    """Read a model's configuration alone, without its weights; `path` and errors are as for `load_model`."""
    name = _name_on_hub(path)
    if name is None:
        return read_config(model_folder(path) / CONFIG_FILE)
    from contextcaps.models.hub import fetch_config

    return read_config(fetch_config(name))


def _name_on_hub(path: str | Path) -> str | None:
    """Return OWNER/NAME of hf:OWNER/NAME; None for anything that is on this machine."""
    if not isinstance(path, str) or not path.startswith(HUB):
        return None
    name = path.removeprefix(HUB)
    if not _HUB_NAME.fullmatch(name):
        raise ModelFileError(f"{path}: expected a name on the Hugging Face Hub such as hf:owner/name")
    return name


def kind_of_folder(path: str | Path) -> Literal["run", "model"] | None:
    """Return whether a folder is that of a run with a model, or of a model; None for anything else.

    What may not be looked into, or has a name that no file can have, is neither.
    """
    try:
        if _has_model(Path(path, "model")):
            return "run"
        return "model" if _has_model(Path(path)) else None
    except OSError:
        return None


def _has_model(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE))


def _not_there(given: str | Path, path: Path) -> str:
    """Say that there is no such model, and what may have been meant."""
    names = shipped_names()
    is_name = path.name == str(given)
    hint = (did_you_mean(path.name, names) if is_name else "") or did_you_mean_run(path)
    hints = [hint] if hint else []
    if _HUB_NAME.fullmatch(path.as_posix()) and path.parts[0] != "runs":
        hints.append(f"hf:{path.as_posix()} would look for it on the Hugging Face Hub")
    if is_name and names:
        shipped = f"no such folder, nor a shipped model (there {'is' if len(names) == 1 else 'are'} {', '.join(names)})"
    elif given == DEFAULT_MODEL:
        shipped = f"no such folder, and this copy of contextcaps was installed without its model {DEFAULT_MODEL}"
        hints = hints or ["install contextcaps again, or name a run or a model"]
    else:
        shipped = "no such folder"
    return f"{given}: {shipped}; {'; '.join(hints) or 'expected that of a run or of a model'}"


def model_folder(given: str | Path) -> Path:
    """Return where a model is: among those that are shipped, in the folder itself, or in the run that the folder holds.

    Raises:
        ModelFileError: there is none.
    """
    if not str(given):
        raise ModelFileError(
            "model: an empty name; expected that of a shipped model, or the folder of a run or a model"
        )
    shipped = shipped_folder(given)
    if shipped is not None:
        return shipped
    path = Path(given).expanduser()
    if not path.exists():
        raise ModelFileError(_not_there(given, path))
    if not path.is_dir():
        run = next((each for each in path.parents if kind_of_folder(each) == "run"), None)
        hint = f"; did you mean {run}?" if run else ""
        raise ModelFileError(f"{path}: a file; expected the folder of a run or of a model{hint}")
    for folder in (path, path / "model"):
        if (folder / CONFIG_FILE).exists() or (folder / WEIGHTS_FILE).exists():
            return folder
    if any((path / name).exists() for name in ("run.json", "config.yaml", "checkpoints")):
        raise ModelFileError(
            f"{path}: a run that has not exported a model yet (no {path / 'model'}); let it finish, or finish it with "
            f"contextcaps train --resume {path}"
        )
    inside = sorted(each for each in path.iterdir() if kind_of_folder(each) == "run")
    if inside:
        raise ModelFileError(f"{path}: holds runs; expected one of them, such as {inside[0]}")
    raise ModelFileError(
        f"{path}: neither a run nor a model; expected a run's folder (with model/ in it) or a model's "
        "(with config.json and model.safetensors)"
    )
