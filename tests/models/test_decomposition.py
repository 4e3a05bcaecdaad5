"""The parts of a network's logits sum to them: for every preset that can explain, with field, calibration, groups."""

import dataclasses
import math

import pytest
import torch

from contextcaps.capsules import decision_field, length_logits, score_logits
from contextcaps.capsules.decision_field import messages_by_sender
from contextcaps.models import CapsuleNetwork, create_model, list_models, model_config
from contextcaps.models.decomposition import decompose, divide_length, explains
from contextcaps.models.sections import CalibrationConfig

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
NOTHING = math.nan
KNOWN = torch.tensor([[1.0, NOTHING, 0.0, NOTHING], [NOTHING] * 4, [0.0, 1.0, NOTHING, NOTHING]])
EXPLAINED = [name for name in list_models() if explains(model_config(name, 2))]
CAPSULES = [name for name in EXPLAINED if model_config(name, 2).capsules is not None]
FIELD = {"global_branch": True, "groups": 3}


def made(name: str, calibration: CalibrationConfig | None = None, **options) -> CapsuleNetwork:
    """A network with weights as after training: none is zero."""
    torch.manual_seed(0)
    size = {"capsules.types": 3} if model_config(name, 2).capsules is not None else {}
    network = create_model(name, 4, 32, "small", **size, **options)
    network.config = dataclasses.replace(network.config, calibration=calibration)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for part in (network.head, network.field):
            for parameter in () if part is None else part.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def test_who_can_explain() -> None:
    assert set(list_models()) - set(EXPLAINED) == {"capsnet-em", "ml-decoder", "query2label", "c-tran"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXPLAINED)
@torch.no_grad()
def test_parts_sum_to_the_logits_of_the_network(name, dtype) -> None:
    network, images = made(name).to(dtype), IMAGES.to(dtype)
    output = network(images)
    (found,) = decompose(network, network.features(images), None)
    tolerance = {"rtol": 0, "atol": 1e-9 if dtype == torch.float64 else 1e-4}
    torch.testing.assert_close(found.total(), found.logits, **tolerance)
    torch.testing.assert_close(found.scores, output.scores, **tolerance)
    if output.logits is not None:
        torch.testing.assert_close(found.logits, output.logits, **tolerance)
    assert (found.lengths is not None) == (name in CAPSULES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CAPSULES)
@torch.no_grad()
def test_parts_of_capsules_sum_to_the_length_before_the_squash(name, dtype) -> None:
    network, images = made(name).to(dtype), IMAGES.to(dtype)
    features = network.features(images)
    parts = divide_length(network.head, features)
    sums = network.head(features, return_intermediates=True).intermediates.sums
    total = parts.capsules.sum(dim=(2, 3, 4)) + parts.bias
    tolerance = {"rtol": 0, "atol": 1e-9 if dtype == torch.float64 else 1e-4}
    torch.testing.assert_close(total, parts.length, **tolerance)
    torch.testing.assert_close(parts.length, sums.norm(dim=2), **tolerance)
    assert parts.capsules.shape == (3, 4, 3, *network.grid)


@pytest.mark.parametrize("known", [None, KNOWN], ids=["told nothing", "told"])
@pytest.mark.parametrize("calibration", [None, CalibrationConfig(1.7, -0.6)], ids=["raw", "calibrated"])
@pytest.mark.parametrize("field", [{}, FIELD, {"rank": 2}, {"iterations": 1}], ids=str)
@pytest.mark.parametrize("name", ["capsnet", "contextcaps-rw-crf-corr", "gap", "csra"])
@torch.no_grad()
def test_field_and_calibration_divide_too(name, field, calibration, known) -> None:
    network = made(name, calibration, field=field)
    output = network(IMAGES, known=known)
    (found,) = decompose(network, network.features(IMAGES), known)
    torch.testing.assert_close(found.total(), found.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.logits, output.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.scores, output.scores, rtol=0, atol=1e-5)
    assert found.messages.shape == (3, 4, 4)
    assert not found.messages.diagonal(dim1=1, dim2=2).any()


@pytest.mark.parametrize("kind", ["autocast", "half weights"])
@pytest.mark.parametrize("name", EXPLAINED)
@torch.no_grad()
def test_half_precision_sums_as_well(name, kind) -> None:
    network = made(name)
    exact = network(IMAGES).scores
    if kind == "half weights":
        network = network.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        (found,) = decompose(network, network.features(IMAGES), None)
    assert found.logits.dtype == torch.float32
    torch.testing.assert_close(found.total(), found.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.scores, exact, rtol=0.1, atol=0.05)
    assert next(network.head.parameters()).dtype == (torch.bfloat16 if kind == "half weights" else torch.float32)


@torch.no_grad()
def test_one_head_serves_several_known_labels() -> None:
    network = made("contextcaps")
    features = network.features(IMAGES)
    plain, told = decompose(network, features, None, KNOWN)
    torch.testing.assert_close(plain.scores, network(IMAGES).scores)
    torch.testing.assert_close(told.scores, network(IMAGES, known=KNOWN).scores)
    assert torch.equal(plain.evidence, told.evidence)
    change = (told.messages - plain.messages).sum(dim=1)
    torch.testing.assert_close(told.logits - plain.logits, change, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["capsnet", "contextcaps", "contextcaps-rw-crf-corr"])
@torch.no_grad()
def test_a_capsule_has_what_the_logit_loses_without_it(name) -> None:
    network = made(name).double()
    features = network.features(IMAGES.double())
    (found,) = decompose(network, features, None)
    k, step = 7, 1e-6
    place = (k // (network.grid[0] * network.grid[1]), k // network.grid[1] % network.grid[0], k % network.grid[1])
    parts = divide_length(network.head, features)
    shorter = parts.length - step * parts.capsules[(..., *place)]  # the weights held fixed
    before, after = (
        score_logits(each**2 / (1 + each**2)) if network.field is not None else length_logits(each**2 / (1 + each**2))
        for each in (parts.length, shorter)
    )
    sharpness = 1.0 if network.field is None else network.field.sharpness
    torch.testing.assert_close(found.evidence[(..., *place)], sharpness * (before - after) / step, rtol=1e-4, atol=1e-7)


@torch.no_grad()
def test_a_class_activation_map_by_hand() -> None:
    network = made("gap")
    features = network.features(IMAGES)
    (found,) = decompose(network, features, None)
    linear = network.head.linear
    at = features[1, :, 0, 1] @ linear.weight[2] / features[0, 0].numel()
    torch.testing.assert_close(found.evidence[1, 2, 0, 0, 1], at)
    torch.testing.assert_close(found.constants["head bias"][0], linear.bias)


@torch.no_grad()
def test_maximum_pooling_points_at_the_maximum() -> None:
    network = made("gmp")
    features = torch.zeros(1, *network.feature_shape)
    features[0, 3, 1, 0] = 2.0
    (found,) = decompose(network, features, None)
    assert found.evidence[0, :, 0].flatten(1).count_nonzero(dim=1).tolist() == [1] * 4
    torch.testing.assert_close(found.evidence[0, :, 0, 1, 0], 2 * network.head.linear.weight[:, 3])


@torch.no_grad()
def test_votes_of_zero_give_parts_of_zero() -> None:
    network = made("capsnet-literal")
    network.head.votes.weight.zero_()
    (found,) = decompose(network, network.features(IMAGES), None)
    assert not found.evidence.any()
    torch.testing.assert_close(found.total(), found.logits)
    torch.testing.assert_close(found.logits, torch.full((3, 4), -9.2102), rtol=0, atol=1e-3)


@pytest.mark.parametrize("rank", [None, 2])
def test_messages_by_sender_sum_to_the_messages(rank) -> None:
    generator = torch.Generator().manual_seed(2)
    unary, prior = torch.randn(2, 5, generator=generator), torch.rand(5, generator=generator)
    shape = (5, 5) if rank is None else (5, rank)
    matrices = [torch.randn(shape, generator=generator) for _ in range(1 if rank is None else 2)]
    pairwise = matrices[0] if rank is None else tuple(matrices)
    found = decision_field(unary, pairwise, prior, trust=0.3)
    messages = messages_by_sender(found.sent, pairwise)
    torch.testing.assert_close(unary + messages.sum(dim=1), found.logits)
    assert decision_field(unary, pairwise, prior, iterations=0).sent is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("capsnet-em", "EM routing"),
        ("ml-decoder", "the head ml_decoder"),
        ("query2label", "the head query2label"),
        ("c-tran", "the head c_tran"),
    ],
)
def test_heads_without_exact_parts_are_refused_with_those_that_have_them(name, what) -> None:
    network = made(name)
    with pytest.raises(ValueError, match=rf"^explain: the scores of {what} are no exact sum .*capsnet, .*gap, gmp"):
        decompose(network, network.features(IMAGES), None)


def test_a_network_that_can_be_told_nothing_is_told_nothing() -> None:
    network = made("capsnet")
    with pytest.raises(ValueError, match=r"^known: "):
        decompose(network, network.features(IMAGES), KNOWN)
