"""Statistics of the training labels that a network starts from: label graph, prior, potentials."""

import torch
from torch import Tensor

from contextcaps.data.unknown import class_frequencies, labels_or_nan
from contextcaps.evaluation.known.label_potentials import fit_potentials
from contextcaps.models import CapsuleNetwork

__all__ = ["learn_labels"]


def learn_labels(network: CapsuleNetwork, targets: Tensor) -> None:
    """Give the head (a label graph) and the field (prior and potentials) the training labels [n, J], on the CPU.

    All are fitted to the labels that are known; a class that is never known gets the prior of one never present.
    Potentials are fitted on the network's device, unless the field starts at zero or is of low rank.
    """
    labels = labels_or_nan(targets)  # [n, J]
    network.head.learn_labels(labels)
    field, config = network.field, network.config.field
    if field is None or config is None:
        return
    field.set_prior(torch.from_numpy(class_frequencies(targets.numpy())))
    if config.start == "labels" and config.rank is None:
        found = fit_potentials(labels, config.groups, device=field.bias.device)
        field.start_at(found.pairwise, found.groups)
