"""The public names that the other rooms call, with their parameters and defaults."""

import inspect

import pytest
import torch

from contextcaps import capsules
from contextcaps.training import losses

REQUIRED = inspect.Parameter.empty

FUNCTIONS = {
    "squash": {"vectors": REQUIRED, "dim": -1},
    "lengths": {"vectors": REQUIRED, "dim": -1},
    "cast_votes": {"capsules": REQUIRED, "weight": REQUIRED},
    "capsule_statistic": {"capsules": REQUIRED, "eps": 1e-3},
    "dynamic_routing": {
        "votes": REQUIRED,
        "iterations": 3,
        "initial": None,
        "initial_as": "couplings",
        "normalize": "classes",
    },
    "mean_field": {
        "votes": REQUIRED,
        "pairwise": REQUIRED,
        "iterations": 2,
        "unary": "original",
        "returns": "logits",
    },
    "decision_field": {"unary": REQUIRED, "pairwise": REQUIRED, "prior": REQUIRED, "iterations": 2, "known": None},
    "correlation_weights": {"alpha": REQUIRED},
    "correlate": {"votes": REQUIRED, "alpha": REQUIRED},
    "em_routing": {"votes": REQUIRED, "activations": REQUIRED, "beta_use": REQUIRED, "beta_activate": REQUIRED},
}

MODULES = {
    "PrimaryCapsules": {"in_channels": REQUIRED, "types": REQUIRED, "attributes": REQUIRED},
    "InitialRouting": {"grid": REQUIRED, "types": REQUIRED, "kernel_size": 5},
    "MeanFieldCRF": {"classes": REQUIRED, "iterations": 2},
    "DecisionField": {"classes": REQUIRED, "iterations": 2, "rank": None},
    "CorrelationModule": {"grid": REQUIRED, "capsules": REQUIRED, "classes": REQUIRED},
    "ReconstructionDecoder": {"classes": REQUIRED, "attributes": REQUIRED, "image_shape": REQUIRED},
}

LOSSES = {
    "margin_loss": {"scores": REQUIRED, "targets": REQUIRED, "positive": 0.9, "negative": 0.1, "down_weight": 0.5},
    "length_cross_entropy": {"scores": REQUIRED, "targets": REQUIRED},
    "asymmetric_loss": {"scores": REQUIRED, "targets": REQUIRED},
    "spread_loss": {"scores": REQUIRED, "targets": REQUIRED},
}

TWINS = [
    ("squash", "Squash"),
    ("lengths", "Lengths"),
    ("group_capsules", "PrimaryCapsules"),
    ("cast_votes", "Votes"),
    ("initial_routing", "InitialRouting"),
    ("dynamic_routing", "DynamicRouting"),
    ("em_routing", "EMRouting"),
    ("mean_field", "MeanFieldCRF"),
    ("decision_field", "DecisionField"),
    ("correlate", "CorrelationModule"),
    ("mask_decisions", "ReconstructionDecoder"),
]


def assert_signature(function: object, expected: dict[str, object]) -> None:
    """The parameters come first, in this order; whatever follows has a default."""
    parameters = list(inspect.signature(function).parameters.values())
    assert {parameter.name: parameter.default for parameter in parameters[: len(expected)]} == expected
    assert [parameter.name for parameter in parameters[: len(expected)]] == list(expected)
    assert all(parameter.default is not REQUIRED for parameter in parameters[len(expected) :])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_its_signature(name: str) -> None:
    assert name in capsules.__all__
    assert_signature(getattr(capsules, name), FUNCTIONS[name])


@pytest.mark.parametrize("name", MODULES)
def test_module_has_its_signature(name: str) -> None:
    assert name in capsules.__all__
    module = getattr(capsules, name)
    assert issubclass(module, torch.nn.Module)
    assert_signature(module, MODULES[name])


@pytest.mark.parametrize("name", LOSSES)
def test_loss_has_its_signature(name: str) -> None:
    assert name in losses.__all__
    assert_signature(getattr(losses, name), LOSSES[name])


@pytest.mark.parametrize(("function", "module"), TWINS)
def test_function_and_module_are_twins_in_one_file(function: str, module: str) -> None:
    assert {function, module} <= set(capsules.__all__)
    assert getattr(capsules, function).__module__ == getattr(capsules, module).__module__


@pytest.mark.parametrize("name", capsules.__all__)
def test_public_name_exists_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(capsules, name))


def test_results_have_the_promised_fields() -> None:
    assert capsules.RoutingResult._fields[:3] == ("decisions", "couplings", "logits")
    assert {"decisions", "activations", "couplings"} <= set(capsules.EMRoutingResult._fields)
    assert {"sums", "weights"} <= set(capsules.CorrelationResult._fields)
