"""Labels that are probably wrong or missing: planted errors are found, nothing is judged by who learned it."""

import csv
import dataclasses
import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_run import small_config

import contextcaps
from contextcaps.data import DataError, open_source
from contextcaps.data.problems import BadSamples
from contextcaps.data.source import Subset
from contextcaps.data.unknown import UNKNOWN
from contextcaps.evaluation.metrics import fit_label_noise
from contextcaps.experiments import folds
from contextcaps.experiments.folds import fold_config, fold_indices
from contextcaps.models.trained import Trained
from contextcaps.tagging import (
    Judge,
    Tagger,
    audit_labels,
    describe_reasons,
    read_ticked,
    write_audit,
    write_suspicions,
)
from contextcaps.tagging.audit import judging_scores
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.seen import count_seen
from in_process import run_command

CLASSES = ("sky", "sea", "tree, old", "<b>road</b>", 'car "x"')
IMAGES = ("0.png", "1, 2.png", 'a "b".png', "<script>alert(1).png", "4.png", "5.png")


def tagger_of(name: str, seed: int = 3, **options) -> Tagger:
    """A tagger whose field has potentials, as after training."""
    torch.manual_seed(seed)
    size = {"capsules": {"types": 2}} if "caps" in name else {"c_tran": {"width": 16, "layers": 1}}
    size = {} if name == "gap" else size
    network = contextcaps.create_model(name, 5, 32, "small", **size, class_names=CLASSES, **options)
    if network.field is not None:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in network.field.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return Tagger(network, device="cpu")


def save(tagger: Tagger, folder: Path, data: str = "scenes") -> Path:
    tagger.network.save_pretrained(folder)
    Trained((0.5,) * 5, (0.1,) * 5, seed=7, data=data, epoch=1).write(folder, tagger.network.config)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six images with names that hold commas, quotes and markup; one label is unknown."""
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(5)
    for name in IMAGES:
        pixels = random.integers(0, 200, 3) + random.integers(0, 56, (32, 32, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    labels = random.integers(0, 2, (len(IMAGES), 5)).astype(str)
    labels[0, 1] = "?"
    labels[1, 0] = "1"
    path = folder / "labels.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [("path", *reversed(CLASSES)), *((name, *row) for name, row in zip(IMAGES, labels, strict=True))]
        )
    return path


def right(noise, chances: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The probability of each label to be right, by Bayes' rule."""
    missing, wrong = noise.missing, noise.wrong
    as_present = chances * (1 - missing) / (chances * (1 - missing) + (1 - chances) * wrong)
    as_absent = (1 - chances) * (1 - wrong) / ((1 - chances) * (1 - wrong) + chances * missing)
    return torch.where(targets == 1, as_present, as_absent).float()


def everything(source, tagger: Tagger, **settings):
    return audit_labels(source, [Judge(tagger, np.arange(len(source)))], **settings)


run = functools.partial(run_command, "audit")


# Judging


@pytest.mark.parametrize("name", ["contextcaps", "c-tran"])
def test_a_label_is_judged_without_and_with_all_others_told(name, table) -> None:
    source, tagger = open_source(f"table:{table}"), tagger_of(name)
    found = everything(source, tagger, top=1000)
    assert found.told
    scores = torch.zeros(len(source), 2, 5)
    for index in range(len(source)):
        sample = source.sample(index)
        for place, own in enumerate(source.classes):
            left_out = {place, *sample.unknown}
            known = {each: k in sample.labels for k, each in enumerate(source.classes) if k not in left_out}
            for row, told in enumerate(({}, known)):
                (tagging,) = tagger.tag(sample.image, known=told)
                scores[index, row, place] = float(tagging.scores[CLASSES.index(own)])
    torch.testing.assert_close(judging_scores(tagger, source)[0], scores, rtol=0, atol=1e-5)
    targets = torch.from_numpy(source.targets())
    alone, told = scores.logit().unbind(1)
    noise = fit_label_noise(alone, targets, told)
    assert 0 < noise.told < 1
    mixed = (1 - noise.told) * alone + noise.told * told
    calibrated = torch.sigmoid(noise.scale * mixed + noise.shift + torch.tensor(noise.class_shifts))
    expected = right(noise, calibrated, targets).masked_fill(targets == UNKNOWN, math.nan)
    torch.testing.assert_close(found.probabilities, expected, rtol=0, atol=1e-4, equal_nan=True)
    assert bool(found.probabilities[0].isnan().any())
    assert found.judged == 29
    for only, present in (("wrong", True), ("missing", False)):
        some = everything(source, tagger, top=1000, only=only).suspicions
        assert [(each.index, each.name) for each in some] == [
            (each.index, each.name) for each in found.suspicions if each.is_present == present
        ]
    listed = [each.probability for each in found.suspicions]
    assert listed == sorted(listed)
    opposite = torch.where(targets == 1, 1 - calibrated, calibrated)[targets != UNKNOWN]
    assert len(listed) == found.suspected == int((opposite > 0.5).sum())
    for each in found.suspicions:
        assert each.is_present == (source.classes.index(each.name) in source.labels_of(each.index))
        assert each.suggestion == ("remove" if each.is_present else "add")
        assert each.name in each.reason
        if each.explanation is not None:
            score = float(calibrated[each.index, source.classes.index(each.name)])
            assert each.explanation.score == pytest.approx(score, abs=1e-5)
            assert each.explanation.total() == pytest.approx(each.explanation.logit, abs=1e-4)
            assert 1 / (1 + math.exp(-each.explanation.logit)) == pytest.approx(score, abs=1e-5)
            assert each.reason == describe_reasons(each.explanation)


def test_a_model_that_cannot_be_told_gives_its_scores(table) -> None:
    source, tagger = open_source(f"table:{table}"), tagger_of("gap")
    found = everything(source, tagger, top=3)
    assert not found.told
    assert len(found.suspicions) == 3 < found.suspected
    order = [CLASSES.index(name) for name in source.classes]
    scores = torch.stack(
        [torch.from_numpy(tagging.scores)[order] for tagging in tagger.tag([source.sample(k).image for k in range(6)])]
    )
    targets = torch.from_numpy(source.targets())
    noise = fit_label_noise(scores.logit(), targets)
    shifts = torch.tensor(noise.class_shifts)
    expected = right(noise, torch.sigmoid(noise.scale * scores.logit() + noise.shift + shifts), targets)
    expected[0, source.unknown_of(0)[0]] = math.nan
    torch.testing.assert_close(found.probabilities, expected, equal_nan=True, rtol=0, atol=1e-5)


def test_images_that_cannot_be_read_are_left_out_or_stop_it(table) -> None:
    table.with_name("5.png").write_bytes(b"words")
    source, tagger = open_source(f"table:{table}"), tagger_of("contextcaps")
    with pytest.raises(BadSamples, match=r"5\.png"):
        everything(source, tagger)
    found = everything(source, tagger, on_bad="skip")
    assert [problem.where for problem in found.problems] == ["5.png"]
    assert bool(found.probabilities[5].isnan().all())


def test_a_damaged_model_is_told(table) -> None:
    tagger = tagger_of("gap")
    with torch.no_grad():
        tagger.network.head.linear.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="are its weights damaged"):
        everything(open_source(f"table:{table}"), tagger)


# The table and the page


def test_what_is_ticked_comes_back_whatever_the_names_are(table, tmp_path) -> None:
    found = everything(open_source(f"table:{table}"), tagger_of("contextcaps"), top=1000)
    assert {each.name for each in found.suspicions} >= {"tree, old", 'car "x"'}
    path = tmp_path / "suspected.csv"
    write_suspicions(found.suspicions, path)
    rows = list(csv.DictReader(path.open(encoding="utf-8", newline="")))
    assert list(rows[0]) == ["image", "class", "label", "probability", "suggestion", "reason", "fix"]
    assert [row["image"] for row in rows] == [each.image for each in found.suspicions]
    assert [row["reason"] for row in rows] == [each.reason for each in found.suspicions]
    assert {row["fix"] for row in rows} == {""}
    assert read_ticked(path) == []
    for row, tick in zip(rows, ("x", "no", " Yes ", "1"), strict=False):
        row["fix"] = tick
    for delimiter, encoding in ((",", "utf-8-sig"), (";", "utf-16")):  # as spreadsheets save it
        with path.open("w", encoding=encoding, newline="") as file:
            table_of = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            table_of.writeheader()
            table_of.writerows(rows)
        ticked = read_ticked(path)
        chosen = [found.suspicions[place] for place in (0, 2, 3)]
        assert [(each.image, each.name, each.is_present) for each in ticked] == [
            (each.image, each.name, not each.is_present) for each in chosen
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,tags\na.png,cat\n", "no column class, suggestion, fix; expected a table that contextcaps audit"),
        ("image,class,suggestion,fix\na.png,cat,add,maybe\n", "row 2: fix: expected x"),
        ("image,class,suggestion,fix\na.png,cat,swap,x\n", "row 2: suggestion: expected add or remove, got 'swap'"),
        ("image,class,suggestion,fix\na.png,cat,add,x\na.png,cat,add,x\n", "row 3: 'cat' of 'a.png' is there twice"),
        ("image,class,suggestion,fix\na.png,cat,add,x,y\n", "row 2: expected 4 cells, got 5"),
    ],
)
def test_tables_that_say_something_else_are_refused(text, message, tmp_path) -> None:
    (tmp_path / "ticked.csv").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        read_ticked(tmp_path / "ticked.csv")


def test_names_with_markup_are_shown_on_the_page_and_not_executed(table, tmp_path) -> None:
    found = everything(open_source(f"table:{table}"), tagger_of("contextcaps"), top=1000)
    write_audit(dataclasses.replace(found, by="<u>by</u>"), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "<b>road" not in page
    assert "<u>by" not in page
    assert "&lt;b&gt;road&lt;/b&gt;" in page
    assert "&lt;script&gt;alert(1).png" in page
    assert page.count("<figure>") == len(found.suspicions)
    assert page.count('src="data:image/') == 2 * len(found.suspicions)
    assert re.search(r"wrong\?|missing\?", page)


def test_a_page_without_suspicions_parts_or_files(table, tmp_path) -> None:
    source = open_source(f"table:{table}")
    found = everything(source, tagger_of("c-tran"), top=2)
    table.with_name(found.suspicions[0].image).unlink()
    write_audit(found, tmp_path / "page.html", "A title")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "no picture" in page
    assert "<h1>A title</h1>" in page
    assert "heat map" not in page.lower().replace("heat_map", "")
    write_audit(dataclasses.replace(found, suspicions=()), tmp_path / "page.html")
    assert "<p>None.</p>" in (tmp_path / "page.html").read_text("utf-8")


# The command


def test_from_suspicions_to_a_corrected_table(table, tmp_path, capsys) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in table.parent.iterdir()}
    model = save(tagger_of("contextcaps"), tmp_path / "run" / "model")
    out, page, data = tmp_path / "suspected.csv", tmp_path / "page.html", f"table:{table}"
    code, printed, err = run(["--data", data, "--model", model, "--out", out, "--html", page, "--top", 4], capsys)
    assert code == 0
    assert err == f"note: {model}: whether it has learned from these images is not known\n"
    assert "Of 29 labels judged" in printed
    assert f"Judged by {model} (contextcaps)." in page.read_text("utf-8").replace("&#39;", "'")
    rows = list(csv.reader(out.open(encoding="utf-8", newline="")))
    assert len(rows) == 5
    rows[1][-1] = rows[3][-1] = "x"
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    corrected = table.with_name("corrected.csv")
    words = ["--apply", out, "--data", data, "--out", corrected]
    code, printed, err = run(words, capsys)
    assert (code, err) == (0, "")
    name = printed.strip().removeprefix("2 labels corrected; open the table as ")
    targets, source = open_source(name).targets(), open_source(data)
    changed = {(source.id_of(row), source.classes[column]) for row, column in np.argwhere(targets != source.targets())}
    assert changed == {(rows[1][0], rows[1][1]), (rows[3][0], rows[3][1])}
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == was for path, was in before.items())
    assert run(words, capsys)[0] == 2  # the table is there
    words[3], words[5] = name, tmp_path / "again.csv"  # what is corrected cannot be corrected again
    code, _, err = run(words, capsys)
    assert code == 2
    assert "as they were in the audit" in err


def test_a_model_that_cannot_be_told_says_so_once(table, tmp_path, capsys) -> None:
    model = save(tagger_of("gap"), tmp_path / "run" / "model")
    code, out, err = run(["--data", f"table:{table}", "--model", model], capsys)
    assert code == 0
    assert err.splitlines()[-1] == f"note: {model}: gap cannot be told labels, so each is judged by the image alone"
    assert run(["--data", f"table:{table}", "--model", model, "--quiet"], capsys) == (0, out, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "TABLE", "--model", "nowhere"], "nowhere: no such folder"),
        (
            ["--data", "scenes?count=20&size=32", "--model", "MODEL"],
            "expected the model's 5 classes; the data lack 3: tree",
        ),
        (["--data", "nowhere:x", "--model", "MODEL"], "nowhere:x: expected KIND:LOCATION"),
        (["--data", "table:", "--model", "MODEL"], "nothing after the colon"),
        (["--data", "TABLE", "--model", "MODEL", "--out", "x.txt"], "expected the name of a table to write"),
        (["--data", "TABLE", "--model", "MODEL", "--html", "x.txt"], "expected the name of a page to write"),
        (["--data", "TABLE", "--model", "MODEL", "--top", "0"], "top: expected at least 1, got 0"),
        (["--data", "TABLE", "--model", "MODEL", "--folds", "1"], "folds: expected at least 2, got 1"),
        (["--data", "TABLE", "--model", "MODEL", "--folds", "3"], "folds: expected a run's folder as the model"),
        (["--data", "TABLE", "--model", "MODEL", "--folds", "3", "--trust-model"], "got both"),
        (["--data", "TABLE", "--model", "MODEL", "--fine-tune"], "add --folds 5"),
        (["--data", "TABLE", "--apply", "x.csv"], "--apply: expected the name of the corrected table beside it"),
        (["--data", "TABLE", "--apply", "x.csv", "--out", "y.csv", "--top", "3"], "--top: expected nothing of the"),
        (["--data", "TABLE", "--apply", "x.csv", "--out", "y.csv"], "x.csv: cannot be read"),
        (["--data", "EMPTY", "--model", "MODEL"], "no image has a label; an audit judges labels that are there"),
        (["--data", "OWN", "--model", "TRAINED"], "has learned from 6 of 6 images of table:"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, table, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    empty = table.with_name("empty.csv")
    empty.write_text('path,sky,sea\n0.png,0,0\n"1, 2.png",0,0\n', "utf-8")
    places = {
        "TABLE": f"table:{table}",
        "EMPTY": f"table:{empty}?unlabelled=keep",
        "OWN": f"table:{table}",
        "MODEL": save(tagger_of("contextcaps"), tmp_path / "run" / "model"),
        "TRAINED": save(tagger_of("contextcaps"), tmp_path / "other" / "model", f"table:{table}"),
    }
    code, out, err = run([places.get(word, word) for word in words], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    if words[1] == "OWN":
        assert "--folds 5" in err
        assert "--trust-model" in err


# Planted errors


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, Path, set[tuple[int, int]]]:
    """A run trained on drawn scenes, a table of other scenes with planted errors, and these: image, class."""
    folder = tmp_path_factory.mktemp("planted")
    contextcaps.train(
        data="scenes?count=300&size=32",
        model="contextcaps",
        image_size=32,
        backbone="small",
        options={"capsules.types": 2},
        epochs=5,
        batch_size=16,
        lr=3e-3,
        known=0.5,
        augmentation=False,
        accelerator="cpu",
        out=str(folder / "run"),
        cache=str(folder / "cache"),
        progress=False,
    )
    scenes = open_source("scenes?count=120&size=32&seed=9")
    targets, random = scenes.targets(), np.random.default_rng(0)
    flips = random.choice(targets.size, 40, replace=False)
    errors = {(int(flip) // targets.shape[1], int(flip) % targets.shape[1]) for flip in flips}
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *scenes.classes])
        for index, row in enumerate(targets.tolist()):
            Image.fromarray(scenes.sample(index).image).save(folder / f"{index}.png")
            said = [1 - value if (index, place) in errors else value for place, value in enumerate(row)]
            rows.writerow([f"{index}.png", *said])
    return folder / "run", folder / "labels.csv", errors


def found_early(probabilities: torch.Tensor, errors: set[tuple[int, int]]) -> float:
    """The chance that an error ranks above a label that is right."""
    is_error = torch.zeros_like(probabilities, dtype=torch.bool)
    is_error[tuple(torch.tensor(sorted(errors)).T)] = True
    wrong, right = probabilities[is_error], probabilities[~is_error]
    return float((wrong[:, None] < right[None]).float().mean())


@pytest.mark.long
def test_planted_errors_rank_above_labels_that_are_right(planted) -> None:
    run_folder, table, errors = planted
    found = contextcaps.audit(f"table:{table}?unlabelled=keep", run_folder, progress=False)
    assert found.told
    assert found_early(found.probabilities, errors) > 0.85
    first = {(each.index, found.source.classes.index(each.name)) for each in found.suspicions[: len(errors)]}
    by_chance = len(errors) ** 2 / found.judged
    assert len(first & errors) > 5 * by_chance


@pytest.mark.long
def test_a_run_does_not_judge_what_it_has_learned_from(planted, capsys) -> None:
    run_folder, _, _ = planted
    code, out, err = run(["--data", "scenes?count=300&size=32", "--model", run_folder, "--quiet"], capsys)
    assert (code, out) == (2, "")
    assert re.search(r"has learned from 300 of 300 images of scenes, and would repeat their labels", err)
    assert "--folds 5" in err
    assert "--trust-model" in err
    words = ["--data", "scenes?count=300&size=32", "--model", run_folder, "--quiet", "--trust-model"]
    assert run(words, capsys)[0] == 0


# Folds


def test_folds_share_nothing_and_each_trains_on_the_others() -> None:
    spec = "scenes?count=90&size=32"
    source = open_source(spec)
    each_left_out = fold_indices(source, 3, seed=2)
    assert sorted(np.concatenate(each_left_out).tolist()) == list(range(90))
    for fold, left_out in enumerate(each_left_out):
        name = f"fold:scenes%3Fcount%3D90%26size%3D32?folds=3&fold={fold}&seed=2"
        parts = {split: open_source(name, split=split) for split in ("train", "val")}
        assert parts["train"].splits == ("train", "val")
        ids = [[part.id_of(index) for index in range(len(part))] for part in parts.values()]
        assert len(ids[0]) == pytest.approx(60 * 8 / 9, abs=1)
        out = [source.id_of(index) for index in left_out.tolist()]
        assert sorted([*ids[0], *ids[1], *out]) == sorted(source.id_of(index) for index in range(90))
        assert parts["train"].classes == source.classes


def test_a_pretrained_backbone_stays_as_it_began() -> None:
    run_config = TrainConfig(backbone="lite0", model="capsnet-literal", devices=2, shard=True, val_data="scenes")
    own = fold_config(run_config)
    assert (own.freeze, own.reconstruction, own.devices, own.shard, own.val_data) == (True, 0.0, 1, False, None)
    assert not fold_config(run_config, fine_tune=True).freeze
    assert fold_config(TrainConfig(start_from="coco80", compile=True)).freeze
    assert not fold_config(TrainConfig(start_from="coco80", compile=True)).compile
    assert not fold_config(TrainConfig(backbone="small")).freeze  # it has nothing to begin from


@pytest.mark.long
def test_folds_judge_what_they_have_not_learned_from(tmp_path, monkeypatch, capsys) -> None:
    data, cache = "scenes?count=40&size=32", tmp_path / "cache"
    contextcaps.train(small_config(tmp_path / "run", cache, model="contextcaps", epochs=1, data=data), progress=False)
    kept = sorted(path.name for path in cache.iterdir())
    source, seen, opened = open_source(data), [], []

    def open_counted(*words, **options):
        opened.append(words)
        return open_source(*words, **options)

    monkeypatch.setattr(folds, "open_source", open_counted)

    def look(folder: Path, device: str) -> Tagger:
        left_out = fold_indices(source, 2, seed=0)[len(seen)]
        parts = (left_out, np.setdiff1d(np.arange(40), left_out))
        counts = [count_seen(folder, Part(Subset(source, part.tolist(), "part"), 32), TrainConfig()) for part in parts]
        seen.append([each.train + each.val for each in counts])
        return contextcaps.load(folder, device)

    monkeypatch.setattr(folds, "load", look)
    page = tmp_path / "page.html"
    code, out, err = run(["--data", data, "--model", tmp_path / "run", "--folds", 2, "--html", page], capsys)
    assert code == 0, err
    assert seen == [[0, 20]] * 2
    assert len(opened) == 1
    assert "fold 1 of 2: 20 images left out" in err
    assert f"Of {40 * len(source.classes):,} labels judged" in out
    assert "Judged by 2 models, each trained on the other folds" in page.read_text("utf-8")
    assert sorted(path.name for path in cache.iterdir()) == kept
