"""Backbones: the grids they give, and timm's models through the extra."""

import sys

import pytest
import safetensors.torch
import torch

from contextcaps.extras import import_extra
from contextcaps.models import create_model, model_config
from contextcaps.models.backbones import build_backbone


@pytest.mark.parametrize(
    ("backbone", "image_size", "grid"),
    [("paper", 28, 6), ("paper", 32, 8), ("small", 32, 4), ("small", 64, 8), ("small", 128, 8)],
)
def test_grids(backbone, image_size, grid) -> None:
    assert create_model("capsnet", 2, image_size, backbone, capsules={"types": 2}).grid == (grid, grid)


@pytest.mark.parametrize("name", ["capsnet", "gap"])
@pytest.mark.parametrize("backbone", ["paper", "small", "lite0", "lite2:16"])
@pytest.mark.parametrize("image_size", [(29, 32), (65, 40), (100, 90)])
def test_the_grid_is_known_without_a_forward_pass(name, backbone, image_size) -> None:
    built = build_backbone(model_config(name, 2, image_size, backbone), start=False).eval()
    with torch.no_grad():
        features = built(torch.zeros(1, 3, *image_size))
    assert (built.out_channels, *built.feature_grid(image_size)) == features.shape[1:]


def test_where_images_are_too_small_no_grid_is_told() -> None:
    assert build_backbone(model_config("capsnet", 2, 8, "paper")).feature_grid((8, 20)) is None


def test_the_paper_s_sizes() -> None:
    """28×28 images, D = 32, A = 8: K = 1152 primary capsules, as in Sabour et al."""
    model = create_model("capsnet", 10, 28, "paper", in_channels=1)
    assert model.head.capsules == 1152
    assert model.head.votes.weight.shape == (1152, 8, 10, 16)
    assert model.backbone.convolution.weight.shape == (256, 1, 9, 9)
    assert model.head.primary.convolution.weight.shape == (256, 256, 9, 9)


@pytest.mark.parametrize(("backbone", "image_size"), [("paper", 8), ("paper", 14)])
def test_too_small_images_are_refused(backbone, image_size) -> None:
    with pytest.raises(ValueError, match=rf"image_size: {image_size}×{image_size} px .*use larger images"):
        create_model("capsnet", 2, image_size, backbone)


def test_unknown_backbone() -> None:
    with pytest.raises(ValueError, match=r"backbone: expected 'paper', 'small', .* or 'auto', got 'huge'"):
        create_model("capsnet", 2, 64, "huge")


class TestTimm:
    @pytest.mark.long
    @pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224"])
    def test_a_timm_model_is_a_backbone(self, name, tmp_path) -> None:
        """Also one that hands its features out with the channels last."""
        size = 224 if name.startswith("swin") else 64
        model = create_model("contextcaps", 4, size, f"timm:{name}", capsules={"types": 2}).eval()
        images = torch.rand(2, 3, size, size)
        scores = model(images).scores
        assert scores.shape == (2, 4)
        assert 0.02 < float(scores.detach().mean()) < 0.6
        assert model.grid == (size // 32, size // 32)
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(type(model).from_pretrained(tmp_path)(images).scores, scores)

    def test_building_leaves_the_normalisation_statistics_alone(self) -> None:
        model = create_model("capsnet", 4, 64, "timm:resnet18", capsules={"types": 2})
        assert float(model.backbone.body.bn1.running_mean.abs().max()) == 0
        assert int(model.backbone.body.bn1.num_batches_tracked) == 0

    def test_unknown_timm_model(self) -> None:
        with pytest.raises(ValueError, match=r"timm has no model 'resnet1'; did you mean .*resnet1"):
            create_model("capsnet", 2, 64, "timm:resnet1")
        with pytest.raises(ValueError, match=r"timm has no model 'zzz'; timm\.list_models"):
            create_model("capsnet", 2, 64, "timm:zzz")

    def test_without_timm_the_error_names_the_extra(self, monkeypatch) -> None:
        import_extra.cache_clear()
        monkeypatch.setitem(sys.modules, "timm", None)
        with pytest.raises(ImportError, match=r"pip install 'contextcaps\[timm\]'"):
            create_model("capsnet", 2, 64, "timm:resnet18")
        import_extra.cache_clear()


def test_timm_weights_from_a_file(tmp_path) -> None:
    timm = pytest.importorskip("timm")
    path = tmp_path / "weights.pth"
    torch.manual_seed(1)
    published = timm.create_model("resnet10t")
    torch.save(published.state_dict(), path)
    options = {"capsules.types": 2, "pretrained_file": str(path)}
    network = create_model("capsnet", 3, 64, "timm:resnet10t", **options)
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(
        network.backbone.eval().body(images)[0], published.eval().forward_features(images), rtol=1e-4, atol=1e-5
    )
    network.save_pretrained(tmp_path / "saved")
    path.unlink()  # a saved network has its weights
    assert type(network).from_pretrained(tmp_path / "saved").config.pretrained_file == str(path)
    with pytest.raises(ValueError, match="there is no file"):
        create_model("capsnet", 3, 64, "timm:resnet10t", **options)
    torch.save(timm.create_model("resnet18").state_dict(), path)
    with pytest.raises(ValueError, match="does not fit timm's 'resnet10t'"):
        create_model("capsnet", 3, 64, "timm:resnet10t", **options)
    with pytest.raises(ValueError, match="only timm backbones take one"):
        create_model("capsnet", 3, 64, "small", **options)


class _Executes:
    """Pickles to a call of `open`, which leaves a file behind if it is ever run."""

    def __init__(self, trace) -> None:
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def test_a_weights_file_runs_no_code(tmp_path) -> None:
    pytest.importorskip("timm")
    path, trace = tmp_path / "weights.pth", tmp_path / "trace"
    torch.save({"conv1.weight": _Executes(trace)}, path)
    with pytest.raises(ValueError, match="no weights that can be read safely"):
        create_model("capsnet", 3, 64, "timm:resnet10t", capsules={"types": 2}, pretrained_file=str(path))
    assert not trace.exists()
    torch.save({"conv1.weight": "text"}, path)
    with pytest.raises(ValueError, match="no tensors by name"):
        create_model("capsnet", 3, 64, "timm:resnet10t", capsules={"types": 2}, pretrained_file=str(path))
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="no weights that can be read safely"):
        create_model("capsnet", 3, 64, "timm:resnet10t", capsules={"types": 2}, pretrained_file=str(path))


def test_timm_weights_from_safetensors(tmp_path) -> None:
    timm = pytest.importorskip("timm")
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(timm.create_model("resnet10t").state_dict(), path)
    network = create_model("capsnet", 3, 64, "timm:resnet10t", capsules={"types": 2}, pretrained_file=str(path))
    published = safetensors.torch.load_file(path)
    torch.testing.assert_close(network.backbone.body.state_dict()["bn1.weight"], published["bn1.weight"])
    assert "state_dict" not in network.backbone.body.pretrained_cfg
