"""The configuration: round trips, what it fills in, and what it refuses."""

import dataclasses
import inspect
import re

import pytest

from contextcaps.models import ModelConfig, list_models, model_config


@pytest.mark.parametrize("name", list_models())
def test_yaml_round_trip(name, tmp_path) -> None:
    config = model_config(name, 3, (48, 64), class_names=("bed", "lamp", "Tür"), crf_rank=2)
    assert ModelConfig.from_yaml(config.to_yaml()) == config
    config.to_yaml(tmp_path / "model.yaml")
    assert ModelConfig.from_yaml(tmp_path / "model.yaml") == config
    assert ModelConfig.from_yaml(str(tmp_path / "model.yaml")) == config
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_every_field_has_a_docstring() -> None:
    source = inspect.getsource(ModelConfig)
    for field in dataclasses.fields(ModelConfig):
        assert re.search(rf'^    {field.name}: [^\n]+\n    """\S', source, re.MULTILINE), field.name


def test_what_is_left_open_is_filled_in() -> None:
    small, large = ModelConfig(3, image_size=28), ModelConfig(3, image_size=64, in_channels=1)
    assert (small.image_size, small.backbone, small.types) == ((28, 28), "paper", 32)
    assert (large.backbone, large.types, large.pixel_mean) == ("small", 16, (0.5,))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("num_classes", {"num_classes": 0}),
        ("num_classes", {"num_classes": 2.5}),
        ("num_classes", {"num_classes": True}),
        ("image_size", {"image_size": (64,)}),
        ("image_size", {"image_size": 0}),
        ("image_size", {"image_size": "64"}),
        ("image_size", {"image_size": None}),
        ("image_size", {"image_size": 64.0}),
        ("types", {"types": 0}),
        ("pixel_mean", {"pixel_mean": ()}),
        ("pixel_mean", {"pixel_mean": (0.5, float("nan"), 0.5)}),
        ("initial_start", {"initial_start": float("nan")}),
        ("start_length", {"crf": "literal"}),
        ("routing", {"routing": "random"}),
        ("routing_iterations", {"routing_iterations": -1}),
        ("crf_iterations", {"crf_iterations": -1}),
        ("crf", {"crf": True}),
        ("initial_kernel_size", {"initial_kernel_size": 4}),
        ("initial_routing", {"initial_routing": "couplings", "aggregation": "correlation"}),
        ("initial_routing", {"initial_routing": "logits", "routing": "em"}),
        ("start_length", {"start_length": 1.5}),
        ("em_inverse_temperature", {"em_inverse_temperature": 0.0}),
        ("em_inverse_temperature", {"em_inverse_temperature": float("nan")}),
        ("class_names", {"class_names": ("bed",)}),
        ("class_names", {"class_names": ("bed", "bed", "lamp")}),
        ("pixel_mean", {"pixel_mean": (0.5,)}),
        ("pixel_std", {"pixel_std": (0.5, 0.0, 0.5)}),
        ("crf_rank", {"crf_rank": 2, "crf_per_attribute": True}),
        ("pretrained", {"pretrained": True}),
        ("head", {"head": "linear"}),
        ("head_width", {"head": "ml-decoder", "head_width": 100}),
        ("head_width", {"head": "query2label", "head_width": 6, "attention_heads": 2}),
        ("head_layers", {"head_layers": 0}),
        ("query_groups", {"query_groups": 0}),
        ("dropout", {"dropout": 1.0}),
        ("reconstruction", {"head": "gap", "reconstruction": True}),
        ("in_channels", {"backbone": "lite0", "in_channels": 1}),
        ("share_votes", {"share_votes": "yes"}),
    ],
)
def test_refusals_name_the_field(field, values) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: expected .*got") as refusal:
        ModelConfig.from_dict({"num_classes": 3, **values})
    assert "\n" not in str(refusal.value)


def test_yaml_in_one_line() -> None:
    assert ModelConfig.from_yaml("{num_classes: 3, types: 2}").types == 2


def test_bad_yaml_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="num_classes: expected a whole number, got none"):
        ModelConfig.from_yaml("model: capsnet\nrouting: dynamic\n")
    (tmp_path / "broken.yaml").write_text("num_classes: [3\n")
    with pytest.raises(ValueError, match=r"broken\.yaml: no valid YAML"):
        ModelConfig.from_yaml(tmp_path / "broken.yaml")
    with pytest.raises(ValueError, match="expected fields and values"):
        ModelConfig.from_yaml("- a\n- b\n")
