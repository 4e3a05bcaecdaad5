"""The configuration: round trips, what it fills in, and what it refuses."""

import dataclasses
import inspect
import re

import pytest

from contextcaps.models import ModelConfig, list_models, model_config, sections

BASELINE = {"capsules": None, "routing": None}


@pytest.mark.parametrize("name", list_models())
def test_yaml_round_trip(name, tmp_path) -> None:
    config = model_config(name, 3, (48, 64), class_names=("bed", "lamp", "Tür"), field={"rank": 2})
    assert ModelConfig.from_yaml(config.to_yaml()) == config
    config.to_yaml(tmp_path / "model.yaml")
    assert ModelConfig.from_yaml(tmp_path / "model.yaml") == config
    assert ModelConfig.from_yaml(str(tmp_path / "model.yaml")) == config
    assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("kind", [ModelConfig, *(getattr(sections, name) for name in sections.__all__)])
def test_every_field_has_a_docstring(kind) -> None:
    source = inspect.getsource(kind)
    for field in dataclasses.fields(kind):
        assert re.search(rf'^    {field.name}: [^\n]+\n    """\S', source, re.MULTILINE), field.name


def test_what_is_left_open_is_filled_in() -> None:
    small, large = ModelConfig(3, image_size=28), ModelConfig(3, image_size=64, in_channels=1)
    assert (small.image_size, small.backbone, small.capsules.types) == ((28, 28), "paper", 32)
    assert (large.backbone, large.capsules.types, large.pixel_mean) == ("small", 16, (0.5,))


def test_layers_and_dotted_names() -> None:
    """A section given in part keeps the rest; a dotted name counts whatever its place."""
    preset = {"num_classes": 3, "crf": {"iterations": 4}, "field": {}}
    config = ModelConfig.from_dict(preset, {"crf.rank": 2, "field": "none", "correlation": "default"})
    assert (config.crf.iterations, config.crf.rank, config.field) == (4, 2, None)
    assert config.correlation == sections.CorrelationConfig()
    assert ModelConfig.from_dict(preset, {"crf": {"rank": 2}}).crf.iterations == 4
    assert ModelConfig.from_dict(preset, {"crf": "default"}).crf == sections.CRFConfig()
    assert ModelConfig.from_dict(preset, {"crf": None}).crf is None
    assert ModelConfig.from_dict(preset, {"crf": sections.CRFConfig(rank=5)}).crf == sections.CRFConfig(rank=5)
    added = ModelConfig.from_dict({"num_classes": 3}, {"crf.rank": 2, "crf": "default"})
    assert added.crf == sections.CRFConfig(rank=2)
    assert ModelConfig.from_dict({"num_classes": 3, "capsules.start_length": "none"}).capsules.start_length is None
    assert preset == {"num_classes": 3, "crf": {"iterations": 4}, "field": {}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("capsules.types", "capsules.types: gap has no capsules; add it with capsules=default"),
        ("routing.iterations", "routing.iterations: gap has no dynamic routing; add it with routing=default"),
        ("em.iterations", "em.iterations: capsnet has no EM routing; add it with em=default"),
        (
            "initial_routing.start",
            "initial_routing.start: capsnet has no initial routing; add it with initial_routing=",
        ),
        ("crf.rank", "crf.rank: capsnet has no CRF; add it with crf=default"),
        ("correlation.rank", "correlation.rank: capsnet has no correlation module; add it with correlation=default"),
        ("field.groups", "field.groups: capsnet has no field between decisions; add it with field=default"),
        ("pooling.mode", "pooling.mode: capsnet has no pooling head; add it with pooling=default"),
        ("ml_decoder.width", "ml_decoder.width: capsnet has no ML-Decoder; add it with ml_decoder=default"),
        ("query2label.width", "query2label.width: capsnet has no Query2Label decoder; add it with query2label=default"),
        ("ml_gcn.width", "ml_gcn.width: capsnet has no label graph"),
    ],
)
def test_options_of_a_module_that_is_not_there(name, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        model_config(message.split()[1], 3, **{name: 1})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("crf_rank", "'crf.rank'"),
        ("types", "'capsules.types'"),
        ("routing_iterations", "'routing.iterations'"),
        ("initial_kernel_size", "'initial_routing.kernel_size'"),
        ("crf.rnk", "'crf.rank'"),
        ("capsule.types", "'capsules.types'"),
        ("rank", "'crf.rank' or 'correlation.rank' or 'field.rank'"),
        ("imagesize", "'image_size'"),
    ],
)
def test_unknown_names_come_with_the_nearest(name, near) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(name)}: no such field of .*; did you mean {near}\?"):
        ModelConfig.from_dict({"num_classes": 3, name: 1})


def test_unknown_names_in_a_section() -> None:
    with pytest.raises(ValueError, match=r"^crf\.rnk: no such field of the CRF; did you mean 'crf\.rank'\?"):
        ModelConfig.from_dict({"num_classes": 3, "crf": {"rnk": 1}})
    with pytest.raises(ValueError, match=r"^crf\.x: no such field of the CRF; known are crf\.mode, crf\.iterations"):
        ModelConfig.from_dict({"num_classes": 3, "crf": {"x": 1}})


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
        ("capsules.types", {"capsules.types": 0}),
        ("crf.rank", {"crf": {"rank": 0}}),
        ("pixel_mean", {"pixel_mean": ()}),
        ("pixel_mean", {"pixel_mean": (0.5, float("nan"), 0.5)}),
        ("initial_routing.start", {"initial_routing": {"start": float("nan")}}),
        ("capsules.start_length", {"crf": {"mode": "literal"}}),
        ("routing", {"routing": "random"}),
        ("routing", {"routing": "none"}),
        ("routing.normalize", {"routing.normalize": "all"}),
        ("em", {"em": {}}),
        ("routing.iterations", {"routing.iterations": -1}),
        ("crf.iterations", {"crf": {"iterations": -1}}),
        ("crf", {"crf": True}),
        ("initial_routing.kernel_size", {"initial_routing": {"kernel_size": 4}}),
        ("initial_routing.mode", {"initial_routing": {}, "routing": None, "correlation": {}}),
        ("initial_routing.mode", {"initial_routing": {"mode": "logits"}, "routing": None, "em": {}}),
        ("capsules.start_length", {"capsules.start_length": 1.5}),
        ("em.inverse_temperature", {"em": {"inverse_temperature": 0.0}, "routing": None}),
        ("em.inverse_temperature", {"em": {"inverse_temperature": float("nan")}, "routing": None}),
        ("class_names", {"class_names": ("bed",)}),
        ("class_names", {"class_names": ("bed", "bed", "lamp")}),
        ("pixel_mean", {"pixel_mean": (0.5,)}),
        ("pixel_std", {"pixel_std": (0.5, 0.0, 0.5)}),
        ("crf.rank", {"crf": {"rank": 2, "per_attribute": True}}),
        ("crf.rank", {"crf": {"rank": 2, "per_capsule": True}}),
        ("pretrained", {"pretrained": True}),
        ("capsules", {"capsules": "none", "routing": "none"}),
        ("pooling", {"pooling": "default"}),
        ("routing", {**BASELINE, "routing": {}, "pooling": {}}),
        ("crf", {**BASELINE, "pooling": {}, "crf": {}}),
        ("pooling.mode", {**BASELINE, "pooling": {"mode": "median"}}),
        ("ml_decoder.width", {**BASELINE, "ml_decoder": {"width": 100}}),
        ("query2label.width", {**BASELINE, "query2label": {"width": 6, "attention_heads": 2}}),
        ("ml_decoder.layers", {**BASELINE, "ml_decoder": {"layers": 0}}),
        ("ml_decoder.query_groups", {**BASELINE, "ml_decoder": {"query_groups": 0}}),
        ("query2label.dropout", {**BASELINE, "query2label": {"dropout": 1.0}}),
        ("ml_gcn.width", {**BASELINE, "ml_gcn": {"width": 0}}),
        ("c_tran.width", {**BASELINE, "c_tran": {"width": 18, "attention_heads": 3}}),
        ("c_tran.dropout", {**BASELINE, "c_tran": {"dropout": -0.1}}),
        ("c_tran.layers", {**BASELINE, "c_tran": {"layers": 0}}),
        ("reconstruction", {**BASELINE, "pooling": {}, "reconstruction": True}),
        ("in_channels", {"backbone": "lite0", "in_channels": 1}),
        ("capsules.share_votes", {"capsules.share_votes": "yes"}),
        ("engine", {"engine": "fused"}),
    ],
)
def test_refusals_name_the_field(field, values) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}: expected .*got") as refusal:
        ModelConfig.from_dict({"num_classes": 3, **values})
    assert "\n" not in str(refusal.value)


def test_yaml_in_one_line() -> None:
    assert ModelConfig.from_yaml("{num_classes: 3, capsules: {types: 2}, crf: none}").capsules.types == 2


def test_bad_yaml_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="num_classes: expected a whole number, got none"):
        ModelConfig.from_yaml("model: capsnet\nrouting: default\n")
    (tmp_path / "broken.yaml").write_text("num_classes: [3\n")
    with pytest.raises(ValueError, match=r"broken\.yaml: no valid YAML"):
        ModelConfig.from_yaml(tmp_path / "broken.yaml")
    with pytest.raises(ValueError, match="expected fields and values"):
        ModelConfig.from_yaml("- a\n- b\n")
