"""The network as a whole: intermediates, image sizes, inputs it refuses, how much it may weigh."""

import pytest
import torch

from contextcaps.capsules import (
    cast_votes,
    correlate,
    correlation_weights,
    dynamic_routing,
    em_routing,
    initial_routing,
    mean_field,
    squash,
)
from contextcaps.models import create_model, list_models, model_config

CAPSULES = [name for name in list_models() if model_config(name, 2).capsules is not None]
EM = {"routing": None, "em": {}}
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def small_model(name: str = "contextcaps-rw-crf-corr", **overrides: object):
    torch.manual_seed(0)
    size = {"capsules.types": 3} if name in CAPSULES else {}
    return create_model(name, 5, image_size=32, backbone="small", **size, **overrides).eval()


@pytest.mark.parametrize("name", CAPSULES)
def test_every_intermediate_on_request(name) -> None:
    model = small_model(name)
    output = model(IMAGES, return_intermediates=True)
    steps, config = output.intermediates, model.config
    assert steps.capsules.shape == (2, 48, 8)
    assert steps.votes.shape == (2, 48, 5, 16)
    assert steps.sums.shape == (2, 5, 16)
    if config.em is None:
        torch.testing.assert_close(squash(steps.sums), output.decisions)
    assert (steps.initial is None) == (config.initial_routing is None)
    assert (steps.corrected_votes is None) == (config.crf is None)
    assert (steps.correlation_weights is None) == (config.correlation is None)
    assert (steps.couplings is None) == (config.routing is config.em is None)
    assert (steps.routing_logits is None) == (config.routing is None)
    if steps.correlation_weights is not None:
        assert steps.correlation_weights.shape == (2, 5, 48)
    torch.testing.assert_close(model(IMAGES).scores, output.scores)


def test_correlation_in_place_of_routing_is_the_weighted_sum() -> None:
    """contextcaps' decisions, recomputed by hand from its intermediates."""
    model = small_model()
    with torch.no_grad():
        model.head.initial.kernel.normal_()
        model.head.crf.weight.normal_(std=0.3)
        model.head.correlation.weight.normal_(std=0.3)
        model.head.bias.normal_()
    steps = model(IMAGES, return_intermediates=True).intermediates
    feature_map = model.head.low_level_map(steps.capsules)
    weights = correlation_weights(model.head.correlation.alpha(feature_map))
    gated = steps.corrected_votes * steps.initial[:, :, None, None]
    sums = model.head.gain * (weights.transpose(1, 2).unsqueeze(-1) * gated).sum(dim=1) + model.head.bias
    torch.testing.assert_close(steps.sums, sums, rtol=1e-4, atol=1e-5)


def test_joined_correlation_at_uniform_weights_is_plain_routing() -> None:
    joined = small_model("capsnet", correlation={})
    plain = small_model("capsnet")
    with torch.no_grad():
        joined.head.correlation.weight.zero_()
    plain.load_state_dict({**plain.state_dict(), **joined.state_dict()}, strict=False)
    torch.testing.assert_close(joined(IMAGES).scores, plain(IMAGES).scores)


@pytest.mark.parametrize(
    "overrides",
    [
        {"routing": None, "em": {}},
        {"routing": None, "em": {}, "initial_routing": {"mode": "gate"}},
        {"routing": None, "em": {}, "correlation": {}},
        {"correlation": {}, "initial_routing": {"mode": "couplings"}, "crf": {}},
        {"correlation": {}, "initial_routing": {"mode": "gate"}},
        {"routing.normalize": "capsules", "initial_routing": {"mode": "logits"}},
        {"crf": {"per_attribute": True}},
        {"crf": {"per_capsule": True}},
        {"crf": {"rank": 2}},
        {"routing": None, "correlation": {"rank": 2}},
        {"capsules.share_votes": True},
        {"reconstruction": True},
        {"in_channels": 1},
        {"image_size": (32, 48)},
    ],
    ids=str,
)
def test_other_settings_run_and_learn(overrides) -> None:
    torch.manual_seed(0)
    arguments = {"image_size": 32, "backbone": "small", "capsules.types": 3, **overrides}
    model = create_model("capsnet", 5, **arguments)
    images = torch.rand(2, model.config.in_channels, *model.config.image_size)
    output = model(images)
    loss = output.scores.sum()
    if overrides.get("reconstruction"):
        rebuilt = model.reconstruct(output.decisions, torch.ones(2, 5))
        assert rebuilt.shape == images.shape
        loss = loss + rebuilt.sum()
    loss.backward()
    # The low-rank pairwise starts as LoRA does: one factor at zero, so that the other gets its gradient a step later.
    silent = {name for name, each in model.named_parameters() if not bool((each.grad != 0).any())}
    assert silent <= {"head.crf.left"}


@pytest.mark.parametrize("name", [name for name in CAPSULES if model_config(name, 2).em is None])
def test_presets_are_what_their_settings_say(name) -> None:
    """Each preset's decisions, made again from its primary capsules with the public functions and its settings."""
    routing = model_config(name, 2).routing
    iterations = 1 if routing is None else min(routing.iterations, 2)
    model = small_model(name, **({} if routing is None else {"routing.iterations": iterations}))
    head, config = model.head, model.config
    with torch.no_grad():
        for parameter in (head.initial, head.crf):
            if parameter is not None:
                next(parameter.parameters()).add_(0.05 * torch.rand(next(parameter.parameters()).shape))
    steps = model(IMAGES, return_intermediates=True).intermediates
    votes = cast_votes(steps.capsules, head.votes.weight)
    if config.crf is not None and config.crf.mode == "centred":
        votes = mean_field(votes, head.crf.weight, 2, centre=True, scale=5.0)
    elif config.crf is not None:
        votes = mean_field(votes, head.crf.weight, 2, unary="current", returns="marginals")
    bias = None
    if config.initial_routing is not None:
        bias = head.initial.bias
        initial = initial_routing(steps.capsules, head.initial.kernel, (4, 4), bias)
    else:
        initial = None
    if config.correlation is not None:
        feature_map = torch.einsum("bdyxa,da->byx", steps.capsules.unflatten(1, (3, 4, 4)), head.low_level_map.weight)
        cells = (feature_map + head.low_level_map.bias).flatten(1)
        alpha = torch.einsum("bn,njk->bjk", cells, head.correlation.weight)
        if config.correlation.start == "uniform":
            alpha = torch.arange(1, 48).sqrt() * (1 + alpha)
        gate, bias = 1.0 if initial is None else initial[:, :, None, None], 0.0 if head.bias is None else head.bias
        sums = head.gain * correlate(votes * gate, alpha) + bias
        torch.testing.assert_close(steps.sums, sums, rtol=1e-4, atol=1e-5)
        return
    initial_as = "logits" if name.endswith("literal") else "couplings"
    routed = dynamic_routing(votes, iterations, initial, initial_as, bias=head.routing.bias, gain=head.gain)
    torch.testing.assert_close(steps.sums, routed.sums, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(steps.couplings, routed.couplings, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"routing.iterations": 5}, lambda head: head.routing.iterations == 5),
        ({"routing": None, "em": {"iterations": 2}}, lambda head: head.routing.iterations == 2),
        (
            {"routing": None, "em": {"inverse_temperature": 3.0}},
            lambda head: head.routing.final_inverse_temperature == 3 * head.routing.beta_use.numel() / head.capsules,
        ),
        ({**EM, "capsules.start_length": None}, lambda head: not head.routing.beta_activate.any()),
        ({"routing.normalize": "capsules"}, lambda head: head.routing.normalize == "capsules"),
        ({"crf": {"iterations": 4}}, lambda head: head.crf.iterations == 4 and not head.crf.literal),
        ({"crf": {"mode": "literal"}, "capsules.start_length": None}, lambda head: head.crf.literal),
        ({"initial_routing": {"kernel_size": 3}}, lambda head: head.initial.kernel.shape == (3, 3)),
        ({"initial_routing": {"start": 0.5}}, lambda head: float(head.initial.bias.detach()) == 0.5),
        ({"initial_routing": {"mode": "gate", "start": None}}, lambda head: head.initial.bias is None),
        (
            {"routing": None, "correlation": {"start": "literal"}},
            lambda head: head.correlation.start == "literal",
        ),
        ({"capsules.decision_bias": False}, lambda head: head.routing.bias is None),
        ({"capsules.start_length": None}, lambda head: float(head.gain) == 1),
        (
            {"capsules": {"attributes": 4, "decision_attributes": 6}},
            lambda head: head.votes.weight.shape == (48, 4, 5, 6),
        ),
    ],
)
def test_settings_reach_their_modules(settings, found) -> None:
    assert found(small_model("capsnet", **settings).head)


def test_em_routing_takes_the_capsules_lengths_as_activations() -> None:
    model = small_model("capsnet", **EM)
    output = model(IMAGES, return_intermediates=True)
    steps, routing = output.intermediates, model.head.routing
    costs = (routing.beta_use, routing.beta_activate)
    clusters = em_routing(steps.votes, steps.capsules.norm(dim=-1), *costs, inverse_temperature=routing.schedule)
    torch.testing.assert_close(output.decisions, clusters.decisions)


def test_em_routing_of_nothing_keeps_its_costs() -> None:
    """Where nothing comes out of the backbone, no cost would help."""
    head = small_model("capsnet", **EM, **{"capsules.start_length": None}).head
    head.primary.requires_grad_(False)
    for parameter in head.primary.parameters():
        parameter.zero_()
    head.start_alive(torch.zeros(2, head.primary.convolution.in_channels, *head.grid), 0.1)
    assert not head.routing.beta_activate.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_of_another_precision_takes_bytes_and_floats(dtype) -> None:
    model = small_model().to(dtype)
    pixels = (IMAGES * 255).to(torch.uint8)
    torch.testing.assert_close(model(pixels).scores, model(pixels / 255).scores)
    assert model(pixels).scores.dtype == dtype
    assert len(model.steps()) > 5


def test_filled_after_building_without_memory() -> None:
    model = small_model()
    with torch.device("meta"):
        empty = create_model("contextcaps-rw-crf-corr", 5, image_size=32, backbone="small", capsules={"types": 3})
    filled = empty.to_empty(device="cpu").eval()
    filled.load_state_dict(model.state_dict())
    torch.testing.assert_close(filled(IMAGES).scores, model(IMAGES).scores)


def test_no_decoder_no_reconstruction() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="reconstruction=True"):
        model.reconstruct(model(IMAGES).decisions, torch.ones(2, 5))


def test_bytes_and_floats_are_the_same_images() -> None:
    model = small_model()
    pixels = (IMAGES * 255).to(torch.uint8)
    torch.testing.assert_close(model(pixels).scores, model(pixels / 255).scores)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 1, 32, 32), r"images: expected shape \[B, C=3, H=32, W=32\], got \[2, 1, 32, 32\]"),
        (torch.rand(2, 3, 64, 64), r"H=32, W=32\], got \[2, 3, 64, 64\]"),
        (torch.rand(3, 32, 32), r"expected shape \[B, C=3"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.int64), "floating-point tensor, got torch.int64"),
        (torch.full((2, 3, 32, 32), float("nan")), "images: expected numbers, got NaN in 6144 of 6144"),
        (torch.rand(0, 3, 32, 32), "at least one element"),
        (None, "images: expected a torch.Tensor, got NoneType"),
    ],
)
def test_wrong_images_are_refused(images, message) -> None:
    with pytest.raises(ValueError, match=message):
        small_model()(images)


def test_shared_votes_take_any_size() -> None:
    """Without weights of its own for each grid position, one network takes every image size."""
    model = small_model("capsnet-rw-crf", capsules={"share_votes": True})
    for height, width in ((32, 32), (64, 64), (40, 72)):
        output = model(torch.rand(1, 3, height, width), return_intermediates=True)
        assert output.scores.shape == (1, 5)
        assert output.intermediates.capsules.shape[1] == 3 * (height // 8) * (width // 8)


def test_too_many_weights_are_refused_with_advice() -> None:
    with pytest.raises(
        ValueError, match=r"2,365 million weights \(votes 2,359 million\).*grid=24×24, K=18432"
    ) as refusal:
        create_model("capsnet", 1000, image_size=64, backbone="paper")
    assert "a smaller grid, or capsules.share_votes=true, or capsules.types=16, or a larger max_weights" in str(
        refusal.value
    )
    with pytest.raises(ValueError, match=r"correlation\.rank=16, or crf\.rank=32, or field\.rank=32"):
        create_model("contextcaps-rw-crf-corr", 80, image_size=64, backbone="small", max_weights=1000)
    with pytest.raises(ValueError, match=r"field 25 million.*field\.rank=32"):
        create_model(
            "capsnet", 5000, image_size=32, backbone="small", capsules={"types": 1}, field={}, max_weights=2 * 10**7
        )
    with pytest.raises(ValueError, match=r"labels 1 million.*Try a smaller ml_gcn\.width, or a larger max_weights"):
        create_model("ml-gcn", 5000, image_size=32, backbone="small", max_weights=10**6)
    own = {"share_votes": True, "start_length": None}
    assert create_model("capsnet", 1000, image_size=64, backbone="paper", capsules=own)


@pytest.mark.parametrize("name", list_models())
def test_counted_before_memory_is_taken(name) -> None:
    """Exactly the weights of head and field are counted, for every head."""
    model = small_model(name)
    parts = [model.head, *([] if model.field is None else [model.field])]
    total = sum(weight.numel() for part in parts for weight in part.parameters())
    assert small_model(name, max_weights=total)
    with pytest.raises(ValueError, match="more than max_weights"):
        small_model(name, max_weights=total - 1)


def test_the_head_states_its_grid() -> None:
    model = small_model()
    assert model.grid == (4, 4)
    assert "grid=4×4, K=48, J=5" in repr(model)


def test_steps_add_up_to_the_network() -> None:
    for name in list_models():
        model = small_model(name, reconstruction=name in CAPSULES)
        assert sum(step.weights for step in model.steps()) == sum(each.numel() for each in model.parameters())


def test_class_permutation_permutes_the_scores() -> None:
    model = small_model()
    order = torch.tensor([3, 0, 4, 1, 2])
    before = model(IMAGES).scores
    with torch.no_grad():
        head = model.head
        head.crf.weight.normal_(std=0.3)
        before = model(IMAGES).scores
        head.votes.weight.copy_(head.votes.weight[:, :, order])
        head.crf.weight.copy_(head.crf.weight[order][:, order])
        head.correlation.weight.copy_(head.correlation.weight[:, order])
        head.bias.copy_(head.bias[order])
    torch.testing.assert_close(model(IMAGES).scores, before[:, order], rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["capsnet-rw", "contextcaps-rw-crf-corr"])
def test_exports_as_one_graph(name) -> None:
    """No branch depends on the data, so that compilers and exporters see one graph."""
    model = small_model(name)
    exported = torch.export.export(model, (IMAGES,)).module()
    torch.testing.assert_close(exported(IMAGES).scores, model(IMAGES).scores)


@pytest.mark.long
@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_finite(name, dtype) -> None:
    model = small_model(name)
    with torch.autocast("cpu", dtype):
        scores = model(IMAGES).scores
    scores.float().sum().backward()
    assert scores.isfinite().all()
    of_scores = [each for part, each in model.named_parameters() if not part.startswith("decoder.")]
    assert all(each.grad.isfinite().all() for each in of_scores)
    if not name.endswith("-literal"):  # a literal start magnifies rounding
        torch.testing.assert_close(scores.float(), model(IMAGES).scores, rtol=0.1, atol=0.02)
