"""Calibrated networks: scores by scale and shift, the same rankings, what is known, decisions, files, graphs."""

import dataclasses
import math

import pytest
import torch

from contextcaps.capsules import length_logits, lengths
from contextcaps.evaluation.metrics import average_precision
from contextcaps.models import CapsuleNetwork, create_model, model_config
from contextcaps.models.sections import CalibrationConfig

IMAGES = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(1))
CALIBRATION = CalibrationConfig(scale=1.7, shift=-0.6)
KINDS = {
    "lengths": ("capsnet", {}),
    "field": ("contextcaps", {}),
    "sigmoids": ("gap", {}),
    "em": ("capsnet", {"routing": None, "em": {}}),
}
"""By what the scores are before calibration."""


def made(kind: str, calibration: CalibrationConfig | None = None, **options) -> CapsuleNetwork:
    """The same weights with any calibration."""
    name, modules = KINDS[kind]
    torch.manual_seed(0)
    size = {"capsules.types": 2} if model_config(name, 2).capsules is not None else {}
    network = create_model(name, 6, 32, "small", **size, **modules, **options)
    network.config = dataclasses.replace(network.config, calibration=calibration)
    with torch.no_grad():  # scores that spread
        for parameter in network.head.parameters():
            parameter.mul_(1.5)
    return network.eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_scores_are_sigmoids_of_scaled_and_shifted_logits(kind) -> None:
    raw, found = made(kind)(IMAGES), made(kind, CALIBRATION)(IMAGES)
    logits = length_logits(raw.scores) if raw.logits is None else raw.logits
    assert (raw.logits is None) == (kind in ("lengths", "em"))
    torch.testing.assert_close(found.logits, 1.7 * logits - 0.6)
    torch.testing.assert_close(found.scores, found.logits.sigmoid())
    assert not torch.isclose(found.scores, raw.scores, rtol=1e-3).all()
    if raw.decisions is not None:
        torch.testing.assert_close(lengths(found.decisions), found.scores)
        torch.testing.assert_close(
            torch.nn.functional.normalize(found.decisions, dim=-1), torch.nn.functional.normalize(raw.decisions, dim=-1)
        )


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_no_ranking_changes(kind) -> None:
    raw, found = made(kind)(IMAGES).scores, made(kind, CALIBRATION)(IMAGES).scores
    assert torch.equal(raw.flatten().argsort(stable=True), found.flatten().argsort(stable=True))
    targets = torch.rand(raw.shape, generator=torch.Generator().manual_seed(3)) < 0.3
    for average in ("macro", "micro", "samples"):
        expected = float(average_precision(raw, targets, average=average))
        assert float(average_precision(found, targets, average=average)) == expected


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_scale_of_1_and_no_shift_change_nothing(kind) -> None:
    raw, found = made(kind)(IMAGES), made(kind, CalibrationConfig())(IMAGES)
    torch.testing.assert_close(found.scores, raw.scores, rtol=1e-4, atol=1.1e-4)


@torch.no_grad()
def test_what_is_known_stays_what_was_told() -> None:
    known = torch.full((12, 6), math.nan)
    known[:, 0], known[::2, 3], known[5, 5] = 1.0, 0.0, 0.25
    given = ~known.isnan()
    raw, found = made("field")(IMAGES, known=known), made("field", CALIBRATION)(IMAGES, known=known)
    assert torch.equal(found.scores[given], known[given])
    torch.testing.assert_close(found.scores[~given], (1.7 * raw.logits[~given] - 0.6).sigmoid())
    torch.testing.assert_close(lengths(found.decisions), found.scores)


@pytest.mark.parametrize("kind", ["lengths", "field"])
@torch.no_grad()
def test_the_decoder_gets_the_lengths_that_it_was_trained_on(kind) -> None:
    raw, found = (made(kind, each, reconstruction=True) for each in (None, CALIBRATION))
    present = (torch.arange(72).view(12, 6) % 3 == 0).float()
    expected = raw.reconstruct(raw(IMAGES).decisions, present)
    torch.testing.assert_close(found.reconstruct(found(IMAGES).decisions, present), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_saved_folded_and_exported_it_says_the_same(kind, tmp_path) -> None:
    network = made(kind, CALIBRATION)
    expected = network(IMAGES).scores
    network.save_pretrained(tmp_path)
    again = CapsuleNetwork.from_pretrained(tmp_path)
    assert again.config.calibration == CALIBRATION
    assert torch.equal(again(IMAGES).scores, expected)
    assert network.state_dict().keys() == made(kind).state_dict().keys()
    torch.testing.assert_close(network.folded()(IMAGES).scores, expected, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(network, (IMAGES,)).module()
    torch.testing.assert_close(exported(IMAGES).scores, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_finite(kind) -> None:
    network = made(kind, CALIBRATION)
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(IMAGES).scores
    scores.float().sum().backward()
    assert scores.isfinite().all()
    torch.testing.assert_close(scores.float(), network(IMAGES).scores, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_that_would_turn_rankings_around_is_refused(scale) -> None:
    with pytest.raises(ValueError, match=rf"^calibration\.scale: expected a number above 0, got {scale}"):
        model_config("gap", 3, calibration={"scale": scale})
