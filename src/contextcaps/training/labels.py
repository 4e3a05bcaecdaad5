"""Statistics of the training labels that a network starts from: label graph, prior, potentials."""

from torch import Tensor

from contextcaps.evaluation.known.label_potentials import fit_potentials
from contextcaps.models import CapsuleNetwork

__all__ = ["learn_labels"]


def learn_labels(network: CapsuleNetwork, targets: Tensor) -> None:
    """Give the head (a label graph) and the field (prior and potentials) the training labels [n, J].

    Potentials are fitted on the network's device, unless the field starts at zero or is of low rank.
    """
    network.head.learn_labels(targets)
    field, config = network.field, network.config.field
    if field is None or config is None:
        return
    field.set_prior(targets.double().mean(dim=0))
    if config.start == "labels" and config.rank is None:
        found = fit_potentials(targets, config.groups, device=field.bias.device)
        field.start_at(found.pairwise, found.groups)
