"""The paper's mathematics, one file per idea; each a function and its module, side by side.

Letters, in every file of this folder: B batch; H×W (the paper: N×N) grid of primary capsules; D capsule types in each
grid cell; K = D·H·W primary capsules, k = (d·H + y)·W + x; A attributes of a primary capsule; J decision capsules, one
per class; I attributes of a decision capsule. `capsules` is [B, K, A], `votes` is [B, K, J, I], `decisions` is
[B, J, I].
"""

from contextcaps.capsules.correlation import (
    CorrelationModule,
    CorrelationResult,
    LowLevelMap,
    correlate,
    correlation_weights,
    uniform_alpha,
)
from contextcaps.capsules.decision_field import DecisionField, FieldResult, decision_field
from contextcaps.capsules.em_routing import EMRouting, EMRoutingResult, em_routing
from contextcaps.capsules.group_potentials import Groups
from contextcaps.capsules.guards import unchecked
from contextcaps.capsules.initial_routing import InitialRouting, capsule_statistic, initial_routing
from contextcaps.capsules.mean_field import MeanFieldCRF, mean_field
from contextcaps.capsules.primary import PrimaryCapsules, group_capsules, primary_grid
from contextcaps.capsules.reconstruction import ReconstructionDecoder, mask_decisions
from contextcaps.capsules.routing import DynamicRouting, RoutingResult, dynamic_routing
from contextcaps.capsules.scores import length_logits, length_of_logits, rescale_decisions, score_logits
from contextcaps.capsules.squash import Lengths, Squash, lengths, squash
from contextcaps.capsules.votes import Votes, cast_votes

__all__ = [
    "squash",
    "Squash",
    "lengths",
    "Lengths",
    "group_capsules",
    "primary_grid",
    "PrimaryCapsules",
    "cast_votes",
    "Votes",
    "capsule_statistic",
    "initial_routing",
    "InitialRouting",
    "dynamic_routing",
    "DynamicRouting",
    "RoutingResult",
    "em_routing",
    "EMRouting",
    "EMRoutingResult",
    "mean_field",
    "MeanFieldCRF",
    "correlation_weights",
    "correlate",
    "uniform_alpha",
    "CorrelationModule",
    "CorrelationResult",
    "LowLevelMap",
    "decision_field",
    "DecisionField",
    "FieldResult",
    "Groups",
    "length_logits",
    "length_of_logits",
    "rescale_decisions",
    "score_logits",
    "mask_decisions",
    "ReconstructionDecoder",
    "unchecked",
]
