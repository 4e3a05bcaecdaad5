"""Every registered model is built, run forward and backward, saved and loaded: a new one too, once registered."""

import dataclasses

import pytest
import torch

from contextcaps.models import CapsuleNetwork, create_model, list_models, model_config, register_model
from contextcaps.models.presets import PRESETS
from contextcaps.training.losses import margin_loss

CAPSULES = [name for name in list_models() if model_config(name, 2).capsules is not None]
BASELINES = [name for name in list_models() if name not in CAPSULES]
LITERAL = [name for name in list_models() if name.endswith("-literal")]
SANE = [name for name in CAPSULES if name not in LITERAL]


def small_model(name: str, num_classes: int = 6, **overrides: object) -> CapsuleNetwork:
    torch.manual_seed(0)
    size = {"capsules.types": 3} if name not in BASELINES else {}
    return create_model(name, num_classes, image_size=32, backbone="small", **size, **overrides)


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_the_paper_s_rows_are_registered() -> None:
    rows = ["capsnet", "capsnet-rw", "capsnet-rw-crf", "capsnet-rw-crf-corr"]
    assert list_models()[:5] == [*rows, "contextcaps"]
    assert LITERAL == ["capsnet-literal", "capsnet-rw-literal", "capsnet-rw-crf-literal", "capsnet-rw-crf-corr-literal"]
    assert set(BASELINES) == {"gap", "gmp", "csra", "ml-decoder", "query2label", "ml-gcn", "c-tran"}


def test_controls() -> None:
    assert model_config("capsnet-uniform", 3).routing.iterations == 1
    assert model_config("capsnet-em", 3).em.iterations == 3
    own, whole = model_config("contextcaps", 3), model_config("contextcaps-rw-crf-corr", 3)
    assert own.field == whole.field
    assert own.field.global_branch
    assert own.correlation is own.crf is own.initial_routing is None
    assert None not in (whole.correlation, whole.crf, whole.initial_routing)


@pytest.mark.parametrize("name", list_models())
def test_forward_backward_save_and_load(name, tmp_path) -> None:
    model = small_model(name, class_names=tuple("abcdef"))
    images = noise(3, 3, 32, 32)
    output = model(images)
    assert output.scores.shape == (3, 6)
    assert output.intermediates is None
    assert bool(((output.scores >= 0) & (output.scores <= 1)).all())
    if name in CAPSULES:
        assert output.decisions.shape == (3, 6, 16)
        torch.testing.assert_close(output.scores, output.decisions.norm(dim=-1))
    else:
        assert output.decisions is None
        torch.testing.assert_close(output.scores, output.logits.sigmoid())

    loss = margin_loss(output.scores, noise(3, 6) < 0.5)
    if model.decoder is not None:
        loss = loss + model.reconstruct(output.decisions, noise(3, 6) < 0.5).sum()
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())

    model.save_pretrained(tmp_path)
    loaded = CapsuleNetwork.from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded.config == model.config
    assert loaded.config.class_names == tuple("abcdef")
    torch.testing.assert_close(loaded(images).scores, model.eval()(images).scores, rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize(("image_size", "num_classes"), [(32, 150), (64, 80), (128, 3), (128, 150)])
def test_builds_at_every_size(name, image_size, num_classes) -> None:
    model = create_model(name, num_classes, image_size)
    assert max(model.grid) <= 8
    with torch.inference_mode():
        assert model(noise(1, 3, image_size, image_size)).scores.shape == (1, num_classes)


@pytest.mark.long
@pytest.mark.parametrize("name", LITERAL + BASELINES)
def test_builds_for_a_thousand_classes(name) -> None:
    """The others do in `test_starts_alive`, with their gradients."""
    model = create_model(name, 1000, image_size=32, backbone="small")
    with torch.inference_mode():
        assert model(noise(1, 3, 32, 32)).scores.shape == (1, 1000)


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("image_size", [32, 64, 128])
def test_a_thousand_classes_fit_at_every_size(name, image_size) -> None:
    """Built without memory, to see that no size is refused."""
    with torch.device("meta"):
        assert all(weight.is_meta for weight in create_model(name, 1000, image_size).parameters())


@pytest.mark.long
def test_builds_for_a_thousand_classes_on_large_images() -> None:
    with torch.inference_mode():
        assert create_model("contextcaps", 1000, 128)(noise(1, 3, 128, 128)).scores.isfinite().all()


@pytest.mark.long
@pytest.mark.parametrize("name", SANE)
@pytest.mark.parametrize(
    ("num_classes", "backbone", "image_size"),
    [
        (2, "paper", 28),
        (10, "small", 64),
        (80, "small", 64),
        (150, "paper", 28),
        (1000, "small", 32),
    ],
)
def test_starts_alive(name, num_classes, backbone, image_size) -> None:
    """Mean decision length at the start lies between 0.05 and 0.5, and every parameter gets a gradient."""
    torch.manual_seed(2)
    model = create_model(name, num_classes, image_size, backbone)
    output = model(noise(2, 3, image_size, image_size))
    assert 0.05 < float(output.scores.detach().mean()) < 0.5
    margin_loss(output.scores, noise(2, num_classes) < 0.3).backward()
    still = [name for name, parameter in model.named_parameters() if not bool((parameter.grad != 0).any())]
    # Trust multiplies what classes say to each other: nothing, before the potentials are learnt from labels.
    assert still == ([] if model.field is None else ["field.trust"])


# In EM routing, classes compete for capsules from the start: where there are few, some have none.
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SANE if model_config(name, 2).em is None])
@pytest.mark.parametrize(("backbone", "image_size", "types"), [("timm:resnet18", 64, 16), ("small", 32, 1)])
def test_few_capsules_and_a_thousand_classes_start_alive(name, backbone, image_size, types) -> None:
    """Also where there are far fewer capsules than classes, and not on average only."""
    torch.manual_seed(4)
    model = create_model(name, 1000, image_size, backbone, capsules={"types": types}).eval()
    with torch.no_grad():
        scores = model(noise(2, 3, image_size, image_size)).scores
    assert 0.05 < float(scores.mean()) < 0.5
    assert 0.04 < float(scores.median()) < 0.5
    assert float((scores < 1e-3).float().mean()) < 0.01


def test_dead_start_is_impossible_at_a_thousand_classes() -> None:
    """With the plain start of Sabour's code a thousand classes begin dead; with ours none does."""
    images = noise(2, 3, 32, 32)
    torch.manual_seed(3)
    plain = create_model("capsnet", 1000, 32, "small", capsules={"start_length": None})(images).scores.detach()
    ours = create_model("capsnet", 1000, 32, "small")(images).scores.detach()
    assert float(plain.max()) < 0.001
    assert float(ours.min()) > 0.001


@pytest.mark.parametrize("length", [0.05, 0.3])
@pytest.mark.parametrize("inverse_temperature", [0.01, 0.075])
def test_em_routing_starts_where_it_is_told(length, inverse_temperature) -> None:
    """By its costs, however sharply they decide; at zero, activations begin above one half."""
    settings = {"em.inverse_temperature": inverse_temperature, "capsules.start_length": length}
    model = small_model("capsnet-em", 40, **settings)
    scores = model(noise(8, 3, 32, 32)).scores
    assert float(scores.detach().mean()) == pytest.approx(length, rel=0.15)
    assert bool((model.head.routing.beta_activate == model.head.routing.beta_activate[0]).all())


def test_sabours_capsnet_to_the_letter() -> None:
    """Plain start, no gain, no bias; a decoder for the reconstruction loss."""
    model = small_model("capsnet-literal")
    assert float(model.head.gain) == 1
    assert model.head.routing.bias is None
    assert model.head.crf is model.head.initial is model.head.correlation is None
    decisions = model(noise(2, 3, 32, 32)).decisions
    assert model.reconstruct(decisions, torch.ones(2, 6)).shape == (2, 3, 32, 32)


def test_the_papers_last_row_to_the_letter() -> None:
    """C_j = f_ρ of Algorithm 1's marginals and nothing else: no routing, no √K, no gain, no bias, nothing of RW."""
    head = small_model("capsnet-rw-crf-corr-literal").head
    assert head.routing is head.initial is head.bias is None
    assert head.crf.literal
    assert head.correlation.start == "literal"
    assert float(head.gain) == 1


READINGS = {
    "CRF without RW": ("capsnet-rw-crf", {"initial_routing": "none"}),
    "CRF alone": ("capsnet", {"crf": "default"}),
    "CRF to the letter alone": ("capsnet-literal", {"crf": {"mode": "literal"}}),
    "one pairwise layer per attribute": ("capsnet-rw-crf", {"crf.per_attribute": True}),
    "one pairwise layer per (k, i)": ("capsnet-rw-crf", {"crf.per_capsule": True}),
    "one per (k, i), to the letter": ("capsnet-rw-crf-literal", {"crf.per_capsule": True}),
    "one per (k, i), the paper's last row": ("capsnet-rw-crf-corr-literal", {"crf.per_capsule": True}),
    "0 to MaxItr, both ends": ("capsnet-rw-crf-literal", {"crf.iterations": 3}),
    "CORR joined to routing": ("capsnet-rw-crf-literal", {"correlation": {"start": "literal"}}),
    "the proposed architecture without RW": ("capsnet-rw-crf-corr", {"initial_routing": "none"}),
    "RW and CORR, joined": ("capsnet-rw-crf", {"correlation": "default"}),
}


@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_of_the_paper_runs(reading) -> None:
    """Every weight that takes part has a gradient."""
    name, settings = READINGS[reading]
    model = small_model(name, **settings)
    output = model(noise(2, 3, 32, 32))
    margin_loss(output.scores, noise(2, 6) < 0.5).backward()
    still = [name for name, each in model.named_parameters() if each.grad is None and not name.startswith("decoder")]
    assert still == []


@pytest.mark.parametrize("name", ["capsnet-rw-literal", "capsnet-rw-crf-literal"])
def test_literal_initial_weights_are_a_no_op(name) -> None:
    """RW to the letter: whatever the kernel, the scores are those without it."""
    model = small_model(name).eval()
    images = noise(2, 3, 32, 32)
    before = model(images).scores
    with torch.no_grad():
        model.head.initial.kernel.mul_(-7)
    torch.testing.assert_close(model(images).scores, before, rtol=1e-4, atol=1e-6)


def test_context_starts_as_the_network_without_it() -> None:
    """The CRF starts as the identity: with the same seed, `capsnet-rw-crf` gives the scores of `capsnet-rw`."""
    images = noise(2, 3, 32, 32)
    torch.testing.assert_close(small_model("capsnet-rw-crf")(images).scores, small_model("capsnet-rw")(images).scores)


def test_same_seed_same_weights_and_the_generator_is_left_alone() -> None:
    first, second = small_model("contextcaps"), small_model("contextcaps")
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    torch.manual_seed(0)
    create_model("capsnet", 6, 32, "small", capsules={"types": 3, "start_length": None})
    without = torch.rand(3)
    torch.manual_seed(0)
    create_model("capsnet", 6, 32, "small", capsules={"types": 3})
    assert torch.equal(torch.rand(3), without)


def test_overrides_go_into_a_preset_s_sections() -> None:
    """One that the preset has is changed in part; None removes it."""
    preset, changed = model_config("contextcaps", 5), model_config("contextcaps", 5, field={"groups": 3}, crf=None)
    assert changed.field == dataclasses.replace(preset.field, groups=3)
    assert changed.crf is None
    assert changed == model_config("contextcaps", 5, **{"field.groups": 3, "crf": "none"})


def test_unknown_model_and_field_are_named() -> None:
    with pytest.raises(ValueError, match="no 'contextcap'; did you mean 'contextcaps'"):
        create_model("contextcap", 3)
    with pytest.raises(ValueError, match=r"routing_iteration: no such field.*did you mean 'routing\.iterations'"):
        create_model("capsnet", 3, routing_iteration=1)


def test_arguments_go_before_a_preset_s_settings() -> None:
    register_model("tiny", "small images", backbone="small", image_size=64, capsules={"types": 2})
    try:
        assert model_config("tiny", 3).image_size == (64, 64)
        assert model_config("tiny", 3, 32, "paper").backbone == "paper"
        assert model_config("tiny", 3, 32, "paper", capsules={"types": 5}).capsules.types == 5
    finally:
        del PRESETS["tiny"]


def test_register_a_preset_of_one_s_own() -> None:
    register_model("one-iteration", "no agreement", routing={"iterations": 1})
    try:
        assert small_model("one-iteration").config.routing.iterations == 1
        with pytest.raises(ValueError, match="exists already"):
            register_model("one-iteration", "again")
        with pytest.raises(ValueError, match=r"routing\.normalize: expected one of"):
            register_model("wrong", "no such routing", routing={"normalize": "random"})
    finally:
        del PRESETS["one-iteration"]
