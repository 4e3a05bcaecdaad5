"""A model's scores of a whole data set, in the order of the model's classes, without and with some labels known."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from contextcaps.data import DataError, Source
from contextcaps.data.loading import Loader
from contextcaps.evaluation.known.measuring import give
from contextcaps.evaluation.predictions import Precision, Predictions, predict
from contextcaps.models import CapsuleNetwork

__all__ = ["Scores", "class_order", "predictions_of", "score"]


@dataclasses.dataclass(frozen=True)
class Scores:
    """A network's scores of every image, without and with some labels known."""

    predictions: Predictions
    """Predictions without known labels."""
    told: dict[float, tuple[Tensor, Tensor]]
    """Share of the labels that it was told → which ones [n, J], and its scores then [n, J]."""


def score(
    network: CapsuleNetwork,
    loader: Loader,
    source: Source,
    precision: Precision,
    progress: Callable[[str], AbstractContextManager[Callable[[int], None]]],
    known: Sequence[float] = (),
    seed: int = 0,
) -> Scores:
    """Score every image of a data set; with several processes, all of them have the whole afterwards.

    Args:
        network: on its device.
        loader: this process's share of the images.
        source: what they are; its classes may be in another order than the network's.
        precision: of the computation.
        progress: from what is being done, in words, to a block with a counter of images.
        known: shares of each image's labels to tell the network, each in a pass of its own.
        seed: of which labels are known.
    """
    order, device = class_order(network, source), network.pixel_mean.device
    with progress("evaluating") as tell:
        found = predict(network, loader, source.classes, device, precision, tell)
    found = dataclasses.replace(
        found, targets=found.targets[:, order], classes=network.config.class_names or source.classes
    )
    told = {}
    for share in known:
        labels = give(found, share, seed, order)  # [n, J]

        def known_of(indices: Tensor, labels: Tensor = labels) -> Tensor:
            return labels[torch.searchsorted(found.indices, indices)]  # [B, J]

        with progress(f"telling {100 * share:g} % of the labels") as tell:
            said = predict(network, loader, source.classes, device, precision, tell, known=known_of)
        told[share] = (labels, said.scores)
    return Scores(found, told)


def predictions_of(network: CapsuleNetwork, source: Source, scores: Tensor, indices: Tensor) -> Predictions:
    """Return the predictions that scores computed elsewhere are, as `score` does.

    Args:
        network: whose scores they are.
        source: of the images.
        scores: [n, J], float32, in any order of the images.
        indices: [n], int64, of these images in the source.
    """
    places = indices.argsort()
    targets = torch.from_numpy(source.targets_of(indices[places].tolist()))  # [n, J]
    classes = network.config.class_names or source.classes
    return Predictions(scores[places], targets[:, class_order(network, source)], indices[places], classes)


def class_order(network: CapsuleNetwork, source: Source) -> list[int]:
    """Return where each class of the network is among those of the data.

    Raises:
        DataError: they do not have the same classes.
    """
    names = network.config.class_names
    if names is None:
        if len(source.classes) != network.config.num_classes:
            raise DataError(
                f"{source.name}: expected the model's {network.config.num_classes} classes, got {len(source.classes)}"
            )
        return list(range(len(source.classes)))
    missing = [name for name in names if name not in source.classes]
    extra = [name for name in source.classes if name not in names]
    if missing or extra:
        shown = "; ".join(
            f"{what} {len(some)}: {', '.join(some[:5])}{' …' if len(some) > 5 else ''}"
            for what, some in (("the data lack", missing), ("the model does not know", extra))
            if some
        )
        raise DataError(f"{source.name}: expected the model's {len(names)} classes; {shown}")
    return [source.classes.index(name) for name in names]
