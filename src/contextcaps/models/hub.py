"""Fetch a saved network from the Hugging Face Hub. Its library takes a while to import, so this is imported late."""

from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from contextcaps.models.config import ModelConfig
from contextcaps.models.files import CONFIG_FILE, WEIGHTS_FILE, ModelFileError
from contextcaps.models.trained import TRAINED_FILE, Trained

__all__ = ["fetch_config", "fetch_network", "fetch_trained"]


def fetch_network(name: str, options: dict[str, Any]) -> tuple[Path, Path]:
    """Fetch the configuration and the weights of a model; return where they are now.

    Args:
        name: OWNER/NAME.
        options: of `huggingface_hub.hf_hub_download`.
    """
    return _fetch(name, CONFIG_FILE, options), _fetch(name, WEIGHTS_FILE, options)


def fetch_config(name: str) -> Path:
    """Fetch the configuration of a model, without its weights; return where it is now."""
    return _fetch(name, CONFIG_FILE, {})


def fetch_trained(name: str, config: ModelConfig) -> Trained | None:
    """Fetch what training left of a model; None if it has no such file."""
    try:
        return Trained.read(Path(hf_hub_download(name, TRAINED_FILE)).parent, config)
    except LocalEntryNotFoundError as error:  # offline: whether there is one is known if the Hub was asked before
        if try_to_load_from_cache(name, TRAINED_FILE) is not None:
            return None
        raise ModelFileError(f"{name}: {TRAINED_FILE} is not to be had: {_first_line(error)}") from None
    except EntryNotFoundError:
        return None
    except (OSError, HfHubHTTPError) as error:
        raise ModelFileError(f"{name}: {TRAINED_FILE} is not to be had: {_first_line(error)}") from None


def _fetch(name: str, file: str, options: dict[str, Any]) -> Path:
    try:
        return Path(hf_hub_download(name, file, **options))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise ModelFileError(
            f"{name}: no such folder, and not to be had from the Hugging Face Hub: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
