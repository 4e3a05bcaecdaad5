"""What a configuration of training means, before there is a run: places, the network, batches that can be filled."""

import dataclasses
import os
import sys

from contextcaps.data.source_registry import absolute_source
from contextcaps.models import ModelConfig, model_config
from contextcaps.models.backbones import require_known_backbone
from contextcaps.models.loading import shipped_folder
from contextcaps.rank_zero import is_rank_zero
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import fit_batch_size
from contextcaps.training.runs import Run, RunError

__all__ = ["ANY_CLASSES", "network_config", "require_same_network", "with_absolute_places", "with_fitting_batches"]

ANY_CLASSES = ("one", "other")
"""Stand for the classes of data that have not been opened."""


def with_absolute_places(config: TrainConfig) -> TrainConfig:
    """Return the configuration with places that hold from any working directory."""
    options = dict(config.options)
    if isinstance(options.get("pretrained_file"), str):
        options["pretrained_file"] = os.path.abspath(options["pretrained_file"])
    start = config.start_from
    is_folder = start is not None and shipped_folder(start) is None and os.path.exists(start)
    return dataclasses.replace(
        config,
        data=absolute_source(config.data),
        val_data=None if config.val_data is None else absolute_source(config.val_data),
        cache=None if config.cache is None else os.path.abspath(os.path.expanduser(config.cache)),
        options=options,
        start_from=os.path.abspath(start) if start is not None and is_folder else start,
    )


def network_config(config: TrainConfig, classes: tuple[str, ...]) -> ModelConfig:
    """Return the configuration of the network that a run trains; refuse what does not go together."""
    network = model_config(
        config.model,
        len(classes),
        config.side,
        config.backbone,
        class_names=classes,
        **({} if config.reconstruction is None else {"reconstruction": config.reconstruction > 0}),
        **config.options,
    )
    if config.known > 0:
        network.require_takes_known()
    if network.calibration is not None:
        raise ValueError(
            "calibration: expected none for a network that is to be trained, got one; leave it out, training fits it "
            "at its end"
        )
    require_known_backbone(network.backbone)
    if config.freeze and network.reconstruction:
        raise ValueError(
            f"freeze: the head is trained on kept features, which leaves {config.model} no image to rebuild; add "
            "--reconstruction 0"
        )
    if config.freeze and not network.has_published_weights and config.start_from is None:
        raise ValueError(
            f"freeze: expected a pretrained backbone, got {network.backbone}, which starts from random weights; take "
            "lite0, --from MODEL, or timm:NAME with --set pretrained=true or pretrained_file=FILE"
        )
    return network


def require_same_network(run: Run, network: ModelConfig) -> None:
    """Refuse a preset that has changed since the run began; changed data are refused by `_record_data`."""
    path = run.folder / "network.yaml"
    if not path.is_file():
        return
    begun = ModelConfig.from_yaml(path).to_dict()
    of_data = ("num_classes", "class_names")
    other = [name for name, value in network.to_dict().items() if name not in of_data and begun.get(name) != value]
    if other:
        raise RunError(
            f"{run.folder}: began with another network than {network.model} is now ({', '.join(other)}); its exported "
            "model can be used, but to go on, train anew"
        )


def with_fitting_batches(config: TrainConfig, images: int) -> TrainConfig:
    """Return a configuration with a batch size that each process can fill; rank zero says if it is another."""
    fitted = fit_batch_size(config, images)
    if fitted != config and is_rank_zero():
        processes = config.devices * config.nodes
        each = "" if processes == 1 else f" for each of {processes} processes"
        print(
            f"note: batch size {fitted.batch_size}{each} instead of {config.batch_size}: there are {images} training "
            "images",
            file=sys.stderr,
            flush=True,
        )
    return fitted
