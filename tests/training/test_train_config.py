"""The training configuration: defaults, YAML, flags over YAML, and what is refused."""

import dataclasses

import pytest
import yaml

from contextcaps import cli
from contextcaps.training.config import TrainConfig, _parse_options, spell_options


def test_round_trip() -> None:
    config = TrainConfig(
        data="coco:x", options={"capsules.types": 8, "capsules.start_length": None}, augment=TrainConfig().augment
    )
    assert TrainConfig.from_yaml(config.to_yaml()) == config
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_numbers_as_people_write_them() -> None:
    """YAML 1.1 takes 1e-3 for text; text that looks like a number stays text on the way out and in again."""
    config = TrainConfig.from_yaml("lr: 1e-3\nclip: 2E+0\naugment: {flip: 5e-1}\n")
    assert (config.lr, config.clip, config.augment.flip) == (0.001, 2.0, 0.5)
    config = TrainConfig(data="1e3", options={"capsules.start_length": 1e-05})
    assert TrainConfig.from_yaml(config.to_yaml()) == config


def test_options_as_words() -> None:
    options = {
        "class_list": [1, 2],
        "crf": None,
        "crf.rank": 3,
        "text": "null",
        "length": 1e-5,
        "few": "1e5",
        "deep": {"x": [1.5]},
    }
    words = spell_options(options)
    assert words[0] == "class_list=[1, 2]"
    assert _parse_options(words) == options
    assert _parse_options(["x=1e-1"]) == {"x": 0.1}
    with pytest.raises(ValueError, match=r"x=\[: no valid YAML \(line 1: expected"):
        _parse_options(["x=["])


def test_every_field_has_a_docstring_that_becomes_its_help(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(TrainConfig):
        name = {"options": "set", "augment": "augment.flip", "start_from": "from"}.get(field.name, field.name)
        assert f"--{name.replace('_', '-')}" in shown, field.name
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "epochs: expected a whole number of at least 1, got 0"),
        ({"epochs": "many"}, "epochs: expected a whole number, got 'many'"),
        ({"epoch": 3}, "epoch: no such field of a training run's configuration; did you mean 'epochs'"),
        ({"lr": 0}, "lr: expected a number above 0"),
        ({"ema": 1.0}, "ema: expected a number from 0 to below 1"),
        ({"loss": "mse"}, "loss: expected one of 'auto', 'margin', 'bce', 'asl', 'spread'"),
        ({"lr": 1001}, "lr: expected a number above 0 and at most 1000, got 1001"),
        (
            {"augment": {"flop": 1}},
            r"^augment\.flop: no such field of the augmentation's .* did you mean 'augment\.flip'",
        ),
        ({"augment": {"flip": 2}}, r"^augment\.flip: expected a number from 0 to 1"),
        ({"augment": {"flip": "x"}}, r"^augment\.flip: expected a number, got 'x'"),
        ({"augment": {"crop_scale": 0.4}}, r"^augment\.crop_scale: expected 2 numbers, got 0\.4"),
        ({"augment": {"crop_scale": [0.9, 0.4]}}, r"^augment\.crop_scale: expected 0 < least"),
        ({"augment": 3}, "^augment: expected fields and values or default, got 3"),
        ({"options": {"num_classes": 3}}, "set: num_classes comes from the data"),
        ({"options": {"image_size": 3}}, "set: image_size has a flag of its own, --image-size"),
        ({"shard": True}, "shard: expected more than one process"),
        ({"checkpoint_minutes": 0}, "checkpoint_minutes: expected a number above 0"),
    ],
)
def test_what_is_refused(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.from_dict(values)


@pytest.fixture
def seen(monkeypatch):
    """What the command would train with."""
    found = []

    def train(config, progress):
        found.append((config, progress))
        raise ValueError("enough")

    monkeypatch.setattr("contextcaps.training.trainer.train", train)
    return found


def run(*words) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *map(str, words)])
    assert stopped.value.code == 2


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path, seen) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump({"epochs": 7, "lr": 0.5, "options": {"capsules.types": 8}, "augment": {"flip": 0.0}})
    )
    run("--config", file, "--lr", 0.25, "--augment.hue", 0)
    ((config, progress),) = seen
    assert (config.epochs, config.lr, config.batch_size, config.options) == (7, 0.25, 64, {"capsules.types": 8})
    assert (config.augment.flip, config.augment.hue, config.augment.brightness) == (0.0, 0.0, 0.2)
    assert progress
    run(f"--config={file}", "--quiet", "--set", "capsules.types=4", "capsules.start_length=null", "crf=none")
    assert seen[1][0].options == {"capsules.types": 4, "capsules.start_length": None, "crf": "none"}
    assert not seen[1][1]


def test_a_run_can_be_made_again_from_its_own_configuration(tmp_path, seen) -> None:
    config = TrainConfig(data="scenes?count=5", ema=0.5, options={"capsules.types": 2}, precision="bf16")
    config.to_yaml(tmp_path / "config.yaml")
    run("--config", tmp_path / "config.yaml")
    assert seen[0][0] == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: no such file"),
        (["--resume", "x", "--epochs", "3"], "--resume takes everything but --data from the run; leave out --epochs"),
        (["--resume", "nowhere"], "nowhere: no such folder; expected a run made by `contextcaps train`"),
        (["--model", "nope", "--data", "scenes?count=64"], "model: there is no 'nope'"),
        (["--data", "nothing"], "nothing: expected KIND:LOCATION"),
        (["--data", "shards:nowhere/*.tar"], "no file matches"),
        (["--set", "types"], "NAME=VALUE"),
        (["--set", "typos=3", "--data", "scenes?count=64"], "typos: no such field of a model's configuration"),
        (["--epoch", "3"], "--epochs"),
        (["--lr", "fast"], "--lr"),
    ],
)
def test_misuse_ends_in_one_message_and_code_2(words, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(*words)
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []  # no folder is left behind


def test_bad_yaml(tmp_path, capsys) -> None:
    for text, message in (
        ("epochs: [", "no valid YAML"),
        ("3", "expected fields and values"),
        ("epochz: 3", "did you mean 'epochs'"),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        run("--config", tmp_path / "bad.yaml")
        errors = capsys.readouterr().err
        assert "bad.yaml" in errors
        assert message in errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs: 3\nlr: 1\ndata: [\n", "no valid YAML (line 4: expected the node content, but found '<stream end>')"),
        (b"lr: 1\n\tx: 2\n", "no valid YAML (line 2: found character '\\t' that cannot start any token)"),
        (b"data: caf\xe9\n", "not UTF-8 text (byte 9); expected YAML"),
        (b"data: \x07\n", "no valid YAML (special characters are not allowed)"),
        (b"lr: 2020-13-45\n", "no valid YAML (month must be in 1..12)"),
        (b"", "expected fields and values, got None"),
        (b"epochz: 3\n", "epochz: no such field of a training run's configuration; did you mean 'epochs'?"),
    ],
    ids=["unfinished", "tab", "Latin-1", "control character", "no date", "empty", "unknown field"],
)
def test_bad_files_are_named_once_in_one_line(content, message, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="mine") as caught:
        TrainConfig.from_yaml(path)
    assert str(caught.value) == f"{path}: {message}"
