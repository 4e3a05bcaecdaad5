"""Networks with a field between their decisions: the identity at the start, what is known, saving, baseline heads."""

import math

import pytest
import torch

from contextcaps.capsules import lengths
from contextcaps.models import CapsuleNetwork, create_model, model_config

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
NOTHING = math.nan
KNOWN = torch.tensor([[1.0, NOTHING, 0.0, NOTHING], [NOTHING] * 4, [0.0, 1.0, NOTHING, NOTHING]])
FORMS = [
    {},
    {"rank": 2},
    {"groups": 3},
    {"global_branch": True},
    {"iterations": 1},
]


def made(name: str = "capsnet", seed: int = 0, **options) -> CapsuleNetwork:
    torch.manual_seed(seed)
    size = {"capsules.types": 2} if model_config(name, 2).capsules is not None else {}
    return create_model(name, 4, 32, "small", **size, **options).eval()


def stirred(network: CapsuleNetwork) -> CapsuleNetwork:
    """With potentials, as after training."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.field.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return network


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", ["capsnet", "contextcaps", "gap"])
def test_it_starts_as_the_network_without(name, form) -> None:
    plain, with_field = made(name)(IMAGES), made(name, field=form)(IMAGES)
    torch.testing.assert_close(with_field.scores, plain.scores.clamp(1e-4, 1 - 1e-4))
    torch.testing.assert_close(with_field.logits.sigmoid(), with_field.scores)
    if plain.decisions is None:
        assert with_field.decisions is None
    else:
        torch.testing.assert_close(with_field.decisions, plain.decisions, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", ["capsnet", "contextcaps", "gap"])
def test_what_is_known_is_its_own_score_and_changes_the_others(name, form) -> None:
    network = stirred(made(name, field=form))
    nothing, told = network(IMAGES), network(IMAGES, known=KNOWN)
    given = ~KNOWN.isnan()
    assert torch.equal(told.scores[given], KNOWN[given])
    assert torch.equal(told.scores[1], nothing.scores[1])  # each image is told its own
    others = ~given[[0, 2]]
    assert not torch.isclose(told.scores[[0, 2]][others], nothing.scores[[0, 2]][others], rtol=1e-4).any()
    if told.decisions is not None:
        torch.testing.assert_close(lengths(told.decisions), told.scores)


def test_known_labels_need_a_network_that_takes_them_and_their_shape() -> None:
    with pytest.raises(ValueError, match=r"known: .*\(capsnet\) cannot be told labels.*--model c-tran.*field=default"):
        made()(IMAGES, known=KNOWN)
    network = made(field={})
    with pytest.raises(ValueError, match=r"known: expected shape \[B=3, J=4\], got \[2, 4\]"):
        network(IMAGES, known=KNOWN[:2])
    with pytest.raises(ValueError, match="known: expected values from 0 to 1"):
        network(IMAGES, known=KNOWN + 1)
    with pytest.raises(ValueError, match="known: expected a floating-point tensor"):
        network(IMAGES, known=torch.ones(3, 4, dtype=torch.int64))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_saved_and_loaded_it_says_the_same(form, tmp_path) -> None:
    network = stirred(made(field=form))
    network.field.set_prior(torch.tensor([1.0, 0.0, 0.0, 0.5]))
    network.save_pretrained(tmp_path)
    again = CapsuleNetwork.from_pretrained(tmp_path)
    assert torch.equal(again.field.prior, network.field.prior)
    assert torch.equal(again(IMAGES, known=KNOWN).scores, network(IMAGES, known=KNOWN).scores)


@pytest.mark.parametrize("name", ["contextcaps", "ml-decoder"])
def test_steps_count_its_weights(name) -> None:
    network = made(name, field={"global_branch": True})
    steps = network.steps()
    assert sum(step.weights for step in steps) == sum(parameter.numel() for parameter in network.parameters())
    (step,) = (step for step in steps if step.name.startswith("field"))
    assert step.weights == sum(parameter.numel() for parameter in network.field.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite(dtype) -> None:
    network = stirred(made(field={"global_branch": True}))
    with torch.autocast("cpu", dtype):
        scores = network(IMAGES, known=KNOWN).scores
    scores.float().sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)
    torch.testing.assert_close(scores.float(), network(IMAGES, known=KNOWN).scores, rtol=0.1, atol=0.03)
    if dtype == torch.bfloat16:
        whole = network.to(dtype)(IMAGES, known=KNOWN).scores
        assert whole.isfinite().all()


def test_exports_as_one_graph() -> None:
    network = stirred(made(field={}))
    exported = torch.export.export(network, (IMAGES,)).module()
    torch.testing.assert_close(exported(IMAGES).scores, network(IMAGES).scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field": "votes"}, "^field: expected fields and values, none or default, got 'votes'"),
        ({"field": {"iterations": 0}}, r"^field\.iterations: expected a whole number of at least 1"),
        ({"field": {"rank": 0}}, r"^field\.rank: expected a whole number of at least 1"),
        ({"field": {"groups": -1}}, r"^field\.groups: expected a whole number of at least 0"),
        ({"field": {"global_branch": "yes"}}, r"^field\.global_branch: expected true or false"),
        ({"field": {"start": "ones"}}, r"^field\.start: expected one of 'labels', 'zero'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)
