"""The Lightning module: losses, gradients, schedules; in our loop and in Lightning's Trainer."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_run import small_config

from contextcaps.data.loading import Batch
from contextcaps.data.unknown import UNKNOWN
from contextcaps.data.visibility import BatchBoxes
from contextcaps.evaluation.metrics.ranking import average_precision
from contextcaps.models import create_model, list_models, model_config
from contextcaps.training.config import TrainConfig
from contextcaps.training.ema import EMA
from contextcaps.training.losses import LOSSES, margin_loss
from contextcaps.training.step import OpaqueBatch, TaggingModule, parameter_groups

CLASSES = 5


def batch(step: int = 0, count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(step)
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    targets = (torch.rand(count, CLASSES, generator=generator) < 0.4).to(torch.uint8)
    return Batch(images, targets, np.arange(count), tuple(map(str, range(count))), epoch=0, step=step)


def module(tmp_path, model: str = "capsnet", steps: int = 10, **changes) -> TaggingModule:
    torch.manual_seed(0)
    config = small_config(tmp_path / "run", tmp_path, model=model, **changes)
    own = config.options if model_config(model, 2).capsules is not None else {}
    decoder = {} if config.reconstruction is None else {"reconstruction": config.reconstruction > 0}
    network = create_model(model, CLASSES, 32, "small", **own, **decoder)
    return TaggingModule(network, config, steps)


def test_a_calibrated_network_is_refused_until_the_calibration_is_taken_off() -> None:
    network = create_model("gap", CLASSES, 32, "small", calibration={"scale": 2.0, "shift": -1.0})
    advice = r"take it off: network\.config = dataclasses\.replace\(network\.config, calibration=None\)$"
    with pytest.raises(ValueError, match=rf"^network: expected one without calibration, .*; {advice}"):
        TaggingModule(network)
    before = network(batch().images).logits
    network.config = dataclasses.replace(network.config, calibration=None)
    after = TaggingModule(network).network(batch().images).logits
    assert torch.allclose(before, 2 * after - 1, atol=1e-5)


@pytest.mark.parametrize("model", list_models())
def test_every_weight_of_every_model_has_a_gradient(tmp_path, model) -> None:
    """Otherwise several processes would wait for each other."""
    made = module(tmp_path, model)
    made.training_step(batch(), 0)["loss"].backward()
    assert [name for name, parameter in made.named_parameters() if parameter.grad is None] == []


def test_the_loss_is_that_of_the_augmented_batch(tmp_path) -> None:
    made = module(tmp_path)
    output = made.training_step(batch(3), 0)
    again = made.training_step(batch(3), 0)
    assert torch.equal(output["loss"], again["loss"])  # every draw depends on the batch alone
    assert torch.allclose(output["loss"], margin_loss(output["scores"], output["targets"]))
    plain = module(tmp_path, augmentation=False)
    expected = margin_loss(plain.network(batch(3).images).scores, batch(3).targets)
    assert torch.allclose(plain.training_step(batch(3), 0)["loss"], expected)
    assert not torch.allclose(plain.training_step(batch(3), 0)["loss"], output["loss"])


@pytest.mark.parametrize(
    ("settings", "weight"), [({"reconstruction": 0.25}, 0.25), ({"model": "capsnet-literal"}, 0.0005)]
)
def test_reconstruction_adds_the_squared_error(tmp_path, settings, weight) -> None:
    made = module(tmp_path, augmentation=False, **settings)
    data = batch()
    output = made.network(data.images)
    rebuilt = made.network.reconstruct(output.decisions, data.targets)
    error = (rebuilt - data.images / 255).square().sum() / len(data)
    expected = margin_loss(output.scores, data.targets) + weight * error
    torch.testing.assert_close(made.training_step(data, 0)["loss"], expected)


def test_a_preset_s_reconstruction_can_be_left_out(tmp_path) -> None:
    made = module(tmp_path, "capsnet-literal", augmentation=False, reconstruction=0.0)
    assert made.network.decoder is None
    expected = margin_loss(made.network(batch().images).scores, batch().targets)
    torch.testing.assert_close(made.training_step(batch(), 0)["loss"], expected)


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_schedules(tmp_path, schedule, steps) -> None:
    made = module(tmp_path, steps=steps, schedule=schedule, lr=0.5, warmup=0.2)
    chosen = made.configure_optimizers()
    optimizer, scheduler = chosen["optimizer"], chosen["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert all(0 < rate <= 0.5 + 1e-12 for rate in rates)
    if steps == 50:
        assert rates.index(max(rates)) == pytest.approx(10, abs=1)
        assert max(rates) == pytest.approx(0.5, rel=2e-3)
        assert rates[0] < 0.1
        last = {"one-cycle": 0.01, "cosine": 0.01, "constant": 0.5}[schedule]
        assert rates[-1] <= last
        assert schedule != "constant" or rates[-1] == 0.5


def test_biases_and_norms_do_not_decay(tmp_path) -> None:
    network = create_model("contextcaps-rw-crf-corr", CLASSES, 32, "small", capsules={"types": 2})
    decaying, others = parameter_groups(network, 0.3)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert len(decaying["params"]) + len(others["params"]) == len(list(network.parameters()))
    kept = {id(parameter) for parameter in others["params"]}
    for name, parameter in network.named_parameters():
        assert (id(parameter) in kept) == (name.endswith("bias") or parameter.ndim < 2), name


def test_it_trains_in_lightnings_own_trainer(tmp_path) -> None:
    from contextcaps.extras import import_extra

    lightning = import_extra("pytorch_lightning", "train", "this test")
    made = module(tmp_path, augmentation=False)
    before = made.network.head.votes.weight.detach().clone()

    class Batches:
        def __iter__(self):
            return iter([batch(step) for step in range(3)])

        def __len__(self) -> int:
            return 3

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(made, Batches())
    assert trainer.global_step == 3
    assert not torch.equal(made.network.head.votes.weight, before)


class Pairs(torch.utils.data.Dataset):
    """What people have: images and targets, of some types."""

    def __init__(self, images: torch.dtype, targets: torch.dtype) -> None:
        data = batch(count=12)
        self.images = data.images if images == torch.uint8 else data.images.to(images) / 255
        self.targets = data.targets.to(targets)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.targets[index]


@pytest.mark.long
@pytest.mark.parametrize("images", [torch.uint8, torch.float32])
@pytest.mark.parametrize("targets", [torch.uint8, torch.float32, torch.bool])
def test_an_ordinary_dataloader_in_lightnings_trainer(tmp_path, images, targets) -> None:
    """The weights are the same, whatever the types; and those of our own batches."""
    from contextcaps.extras import import_extra

    lightning = import_extra("pytorch_lightning", "train", "this test")
    data = Pairs(images, targets)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    made = module(tmp_path)
    made.total_steps = None  # the trainer knows
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_model_summary=False, default_root_dir=tmp_path, **quiet
    )
    trainer.fit(made, loader, loader)
    assert trainer.global_step == 3
    assert trainer.lr_scheduler_configs[0].scheduler.total_steps == 4
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged.keys() == {"train_loss", "val_loss", "val_mAP"}
    made.eval()
    with torch.no_grad():
        scores = made(data.images)
    assert logged["val_mAP"] == pytest.approx(float(average_precision(scores, data.targets.to(torch.uint8))), abs=1e-6)
    expected = module(tmp_path, steps=3)
    chosen = expected.configure_optimizers()
    expected.train()
    for step in range(3):
        rows = slice(4 * step, 4 * step + 4)
        own = Batch(data.images[rows], data.targets[rows].to(torch.uint8), np.arange(4), tuple("0123"), 0, step)
        expected.training_step(own, step)["loss"].backward()
        chosen["optimizer"].step()
        chosen["lr_scheduler"]["scheduler"].step()
        chosen["optimizer"].zero_grad()
    for (name, weight), other in zip(made.network.named_parameters(), expected.network.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_pairs_may_have_unknown_labels(tmp_path) -> None:
    images, targets = torch.rand(2, 3, 32, 32), torch.zeros(2, CLASSES)
    targets[0, 1], targets[1, 2:] = 1, UNKNOWN
    made = module(tmp_path)
    batch = Batch(images, targets.to(torch.uint8), np.arange(2), ("0", "1"), 0, 0)
    assert torch.equal(made.training_step((images, targets), 0)["loss"], made.training_step(batch, 0)["loss"])


@pytest.mark.parametrize(
    ("pair", "error", "message"),
    [
        ((torch.zeros(2, 3, 32, 32),), TypeError, "expected a pair of tensors, images and targets, got 1: Tensor"),
        ((torch.zeros(2, 3, 32, 32), [1, 2]), TypeError, "got 2: Tensor, list"),
        ((torch.zeros(2, 32, 32, 3), torch.zeros(2, CLASSES)), ValueError, "images: expected [B, 3, H, W], got [2, 32"),
        ((torch.zeros(2, 3, 32, 32).long(), torch.zeros(2, CLASSES)), TypeError, "images: expected uint8, or floats"),
        ((torch.full((2, 3, 32, 32), -2.1), torch.zeros(2, CLASSES)), ValueError, "not normalised (the network does"),
        ((torch.zeros(2, 3, 32, 32), torch.zeros(2).long()), ValueError, "got [2]; torch.nn.functional.one_hot"),
        ((torch.zeros(2, 3, 32, 32), torch.zeros(2, 7)), ValueError, "targets: expected multi-hot rows [2, 5], got [2"),
        (
            (torch.zeros(2, 3, 32, 32), torch.full((2, CLASSES), 0.5)),
            ValueError,
            "expected 0, 1, or 255 (unknown)",
        ),
    ],
    ids=["alone", "list", "channels-last", "long", "normalised", "class-numbers", "other-classes", "soft"],
)
def test_pairs_that_would_teach_nonsense_are_refused(tmp_path, pair, error, message) -> None:
    made = module(tmp_path)
    for step in (made.training_step, made.validation_step):
        with pytest.raises(error) as caught:
            step(pair, 0)
        assert message in str(caught.value)


def test_average_of_weights() -> None:
    network = torch.nn.Linear(2, 1, bias=False)
    network.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    network.weight.data.fill_(1.0)
    average = EMA(network, decay=0.5)
    mean = 1.0
    for step in range(1, 20):
        network.weight.data.fill_(float(step))
        average.update(network)
        decay = min(0.5, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * step
        assert average.means["weight"][0, 0].item() == pytest.approx(mean, rel=1e-6)
    with average.inside(network):
        assert network.weight[0, 0].item() == pytest.approx(mean, rel=1e-6)
    assert network.weight[0, 0].item() == 19
    other = EMA(network, decay=0.5)
    other.load_state_dict(average.state_dict())
    assert other.steps == 19
    assert torch.equal(other.means["weight"], average.means["weight"])
    assert math.isclose(average.means["weight"][0, 0].item(), mean, rel_tol=1e-6)


def with_unknown(data: Batch) -> Batch:
    """The batch with a class that no image knows, and one that one image does not."""
    targets = data.targets.clone()
    targets[:, 1] = targets[0, 3] = UNKNOWN
    return dataclasses.replace(data, targets=targets)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_unknown_labels_pull_at_no_weight(tmp_path, loss) -> None:
    config = small_config(tmp_path / "run", tmp_path, model="gap", loss=loss, options={})
    made = TaggingModule(create_model("gap", CLASSES, 32, "small"), config, 10)
    output = made.training_step(with_unknown(batch(2, count=8)), 0)
    assert torch.equal(output["targets"], with_unknown(batch(2, count=8)).targets)
    output["loss"].backward()
    gradient = made.network.head.linear.weight.grad  # [J, C]
    assert (gradient[1] == 0).all()
    assert (gradient[[0, 2, 3, 4]] != 0).any(dim=1).all()


def test_an_unknown_class_is_not_reconstructed(tmp_path) -> None:
    made, data = module(tmp_path, augmentation=False, reconstruction=0.25), with_unknown(batch())
    output = made.network(data.images)
    rebuilt = made.network.reconstruct(output.decisions, data.targets == 1)
    error = (rebuilt - data.images / 255).square().sum() / len(data)
    expected = margin_loss(output.scores, data.targets) + 0.25 * error
    torch.testing.assert_close(made.training_step(data, 0)["loss"], expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("name", "size"), [("contextcaps-rw-crf-corr", {"capsules.types": 2}), ("c-tran", {"c_tran.width": 16})]
)
def test_a_step_on_a_gpu_never_waits_for_it(name, size) -> None:
    config = TrainConfig(known=0.5, image_size=32)
    network = create_model(name, 5, 32, "small", **size).cuda()
    module = TaggingModule(network, config, total_steps=4).cuda()
    boxes = BatchBoxes(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.rand(1, 4))
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8).pin_memory()
    targets = torch.ones(4, 5, dtype=torch.uint8).pin_memory()
    batch = Batch(images, targets, np.arange(4), ("a", "b", "c", "d"), 0, 0, boxes)
    for waits in ("default", "error"):  # kernels are compiled in the first step, which may wait
        torch.cuda.set_sync_debug_mode(waits)
        try:
            with torch.autocast("cuda", torch.bfloat16):
                loss = module.training_step(OpaqueBatch(batch.to("cuda")), 0)["loss"]
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
