"""contextcaps evaluate --known: table, files, and models that cannot be told anything."""

import json
from pathlib import Path

import pytest
from PIL import Image
from small_run import small_config

from contextcaps.cli import main
from contextcaps.documents import signed
from contextcaps.models import create_model
from contextcaps.training.evaluate import evaluate
from contextcaps.training.trainer import train

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("known")
    options = {"capsules.types": 2, "field": "default"}
    train(
        small_config(folder / "run", folder / "cache", model="capsnet", options=options, known=0.5, epochs=1),
        progress=False,
    )
    return folder / "run"


def test_evaluate_known_writes_table_and_files(run, tmp_path, capsys) -> None:
    words = ["evaluate", str(run), "--known", "0.5,0.25", "--resamples", "20", "--accelerator", "cpu", "--quiet"]
    main([*words, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Known labels" in printed
    assert "co-occurrence" in printed
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    document = json.loads((tmp_path / "known.json").read_text())
    assert [each["share"] for each in document["shares"]] == [0.25, 0.5]
    assert [each["given"] for each in document["shares"]] == [12, 24]  # of 47
    for each in document["shares"]:
        assert each["gain"]["value"] == pytest.approx(each["told"]["value"] - each["nothing"]["value"])
        assert f"{signed(each['gain']['value'])} [" in printed
        assert f"{signed(each['lead']['value'])} [" in printed
        assert 0 < each["cooccurrence"]["low"] <= each["cooccurrence"]["high"] < 1
    page = (tmp_path / "known.md").read_text()
    assert "told nothing" in page
    assert "co-occurrence" in page
    assert Image.open(tmp_path / "known.png").size[0] > 500
    assert "known.png" in printed


def test_told_nothing_is_the_plain_model_and_the_draw_is_the_models_own_affair(run, tmp_path) -> None:
    settings = {"known": (0.5,), "accelerator": "cpu", "resamples": 10, "progress": False}
    first = evaluate(run, out=tmp_path / "a", **settings)
    again = evaluate(run / "model", out=tmp_path / "b", cache=run.parent / "cache", **settings)
    assert first.known == again.known  # from the run, and from the model's folder alone
    other = evaluate(run, out=tmp_path / "c", seed=1, **settings)
    assert other.known.shares[0].nothing.value != first.known.shares[0].nothing.value
    assert evaluate(run, out=tmp_path / "d", accelerator="cpu", resamples=10, progress=False).known is None


def test_a_share_that_is_no_label_is_refused_before_the_work(tmp_path) -> None:
    create_model("capsnet", 5, 32, "small", capsules={"types": 2}, field={}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"a share of 0\.05 of 5 classes is 0 of them; choose another share"):
        evaluate(tmp_path, "nowhere:at all", known=(0.05,))


@pytest.mark.parametrize(("shares", "message"), [("0.5", "field=default"), ("2", "between 0 and 1")])
def test_what_cannot_be_measured_is_one_message_and_exit_code_2(shares, message, tmp_path, capsys) -> None:
    create_model("capsnet", 5, 32, "small", capsules={"types": 2}).save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path), "--known", shares, "--data", "scenes", "--quiet"])
    assert stop.value.code == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert all("was ever trained" in line for line in warnings)
    assert message in error
