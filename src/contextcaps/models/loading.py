"""Finding a trained model: in a run, in a folder of its own, or, only where `hf:` says so, on the Hugging Face Hub."""

import re
import sys
from pathlib import Path

import torch

from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.saving import ModelFileError
from contextcaps.models.trained import TRAINED_FILE, Trained
from contextcaps.rank_zero import is_rank_zero
from contextcaps.suggestions import did_you_mean_run

__all__ = ["load_model"]

_HUB = "hf:"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[CapsuleNetwork, Trained | None]:
    """Load a network, and what training left beside it, where it left anything; without that, warn.

    Args:
        path: a run's folder, a model's as `save_pretrained` writes it, or `hf:OWNER/NAME` on the Hugging Face Hub.
        device: where the weights go.

    Raises:
        ModelFileError: there is no model, or it cannot be read.
    """
    if isinstance(path, str) and path.startswith(_HUB):
        name = path.removeprefix(_HUB)
        if not _HUB_NAME.fullmatch(name):
            raise ModelFileError(f"{path}: expected a name on the Hugging Face Hub such as hf:owner/name")
        from contextcaps.models.hub import fetch_trained

        network = CapsuleNetwork.from_pretrained(name, device=device)
        trained = fetch_trained(name, network.config)
    else:
        folder = _model_folder(Path(path).expanduser())
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


def _not_there(path: Path) -> str:
    """Say that there is no such folder, and what may have been meant."""
    hints = [hint] if (hint := did_you_mean_run(path)) else []
    if _HUB_NAME.fullmatch(path.as_posix()) and path.parts[0] != "runs":
        hints.append(f"hf:{path.as_posix()} would look for it on the Hugging Face Hub")
    return f"{path}: no such folder; {'; '.join(hints) or 'expected that of a run or of a model'}"


def _model_folder(path: Path) -> Path:
    """Return where the model is: in the folder itself, or in the run that the folder holds."""
    if not path.exists():
        raise ModelFileError(_not_there(path))
    if not path.is_dir():
        holder = next((each for each in path.parents if (each / "model" / "config.json").exists()), None)
        hint = f"; did you mean {holder}?" if holder else ", and after it what it is for"
        raise ModelFileError(f"{path}: a file; expected the folder of a run or of a model{hint}")
    for folder in (path, path / "model"):
        if (folder / "config.json").exists() or (folder / "model.safetensors").exists():
            return folder
    if any((path / name).exists() for name in ("run.json", "config.yaml", "checkpoints")):
        raise ModelFileError(
            f"{path}: a run that has not exported a model yet (no {path / 'model'}); let it finish, or finish it with "
            f"contextcaps train --resume {path}"
        )
    inside = sorted(each for each in path.iterdir() if (each / "model" / "config.json").exists())
    if inside:
        raise ModelFileError(f"{path}: holds runs; expected one of them, such as {inside[0]}")
    raise ModelFileError(
        f"{path}: neither a run nor a model; expected a run's folder (with model/ in it) or a model's "
        "(with config.json and model.safetensors)"
    )
