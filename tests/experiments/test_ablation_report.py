"""The report of runs that nobody trained: every figure is what plain loops give."""

import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import ablated_runs
import numpy as np
import pytest
from ablated_runs import CLASSES, IMAGES, RESAMPLES, made_up, scores_of, write_run
from rich.console import Console
from scipy import stats
from sklearn.metrics import average_precision_score

from contextcaps.evaluation.metrics.bootstrap import draw_weights
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.ablation import show_ablation, write_ablation
from contextcaps.experiments.ablation.choosing import points, try_folder
from contextcaps.experiments.ablation.findings import findings
from contextcaps.experiments.ablation.grid import Entry
from contextcaps.experiments.ablation.paper import paper_row
from contextcaps.experiments.ablation.report import make_report
from contextcaps.experiments.ablation.tables import report_tables
from contextcaps.training.runs import RunError

SKILLS = {"capsnet": 0.2, "contextcaps": 0.6}


def precision(seed: int, skill: float, weights=None) -> np.ndarray:
    """Average precision of each class that has a positive."""
    found = scores_of(seed, skill)
    return np.array(
        [
            average_precision_score(found.targets[:, j].numpy(), found.scores[:, j].numpy(), sample_weight=weights)
            for j in range(len(CLASSES) - 1)
        ]
    )


def interval(values) -> tuple[float, float, float]:
    quantile = {2: 12.7062047, 3: 4.30265273}[len(values)]
    mean, half = np.mean(values), quantile * np.std(values, ddof=1) / np.sqrt(len(values))
    return mean, mean - half, mean + half


def difference(first, second, *others) -> tuple[float, float, float]:
    """With the deviation pooled over all models."""
    groups = [first, second, *others]
    degrees = sum(len(each) - 1 for each in groups)
    variance = sum((len(each) - 1) * np.var(each, ddof=1) for each in groups) / degrees
    value = np.mean(first) - np.mean(second)
    quantile = {3: 3.18244631, 4: 2.77644511, 6: 2.44691185}[degrees]
    half = quantile * np.sqrt(variance * (1 / len(first) + 1 / len(second)))
    return value, value - half, value + half


def as_tuple(estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation") / "out"
    made_up(out, SKILLS)
    return out


def test_the_papers_table(folder) -> None:
    plain, context = make_report(folder, RESAMPLES).models
    both = {name: [precision(seed, skill).mean() for seed in range(3)] for name, skill in SKILLS.items()}
    assert as_tuple(plain.mAP) == pytest.approx(interval(both["capsnet"]), abs=1e-6)
    assert as_tuple(context.mAP) == pytest.approx(interval(both["contextcaps"]), abs=1e-6)
    expected = difference(both["contextcaps"], both["capsnet"])
    assert as_tuple(context.difference) == pytest.approx(expected, abs=1e-6)
    assert plain.difference is None
    assert (plain.verdict, context.verdict, context.pairs) == ("baseline", "better", 3)


def test_the_interval_over_images_takes_all_seeds(folder) -> None:
    context = make_report(folder, RESAMPLES).models[1]
    weights = draw_weights(IMAGES, RESAMPLES, 0).numpy()  # [n, R]
    drawn = [
        np.mean([precision(seed, 0.6, column).mean() - precision(seed, 0.2, column).mean() for seed in range(3)])
        for column in weights.T
    ]
    value, (low, high) = context.difference.value, np.quantile(drawn, [0.025, 0.975])
    assert as_tuple(context.image_difference) == pytest.approx((value, 2 * value - high, 2 * value - low), abs=1e-5)


def test_the_gain_of_each_class(folder) -> None:
    gains = {each.name: each for each in make_report(folder, RESAMPLES).models[1].gains}
    assert set(gains) == set(CLASSES[:-1])  # without the class that no test image shows
    ours, theirs = (np.array([precision(seed, skill) for seed in range(3)]) for skill in (0.6, 0.2))  # [S, J]
    targets = scores_of(0, 0.2).targets.numpy()
    for j, name in enumerate(CLASSES[:-1]):
        welch = stats.ttest_ind(ours[:, j], theirs[:, j], equal_var=False).confidence_interval()
        assert (gains[name].gain.low, gains[name].gain.high) == pytest.approx((welch.low, welch.high), abs=1e-6)
        assert gains[name].positives == targets[:, j].sum()
        assert gains[name].frequency == pytest.approx(0.1 * (j + 1))
        others = [row.sum() - 1 for row in targets if row[j]]
        assert gains[name].company == pytest.approx(np.mean(others))


def test_cost_and_convergence(folder) -> None:
    model = make_report(folder, RESAMPLES).models[0]
    assert model.epochs_within == (2, 2, 2)
    assert model.band() == [(1, 0.2, 0.22), (2, 0.5, 0.52), (3, 0.502, pytest.approx(0.522))]
    assert [each["val_mAP"] for each in model.mean_history()] == pytest.approx([0.21, 0.51, 0.512])
    cost = model.cost()
    assert cost["parameters"] == 1_500_000
    assert cost["step_milliseconds"] == pytest.approx(0.5 * 64 * 1e3)  # the first epoch does not count
    assert cost["images_per_second"] == pytest.approx(2)
    assert cost["peak_memory_bytes"] == 2**30 + 2
    assert cost["seconds"] == pytest.approx(220)


def test_which_models_are_the_papers() -> None:
    assert paper_row(Entry("capsnet", "capsnet", {"capsules.types": 4})) == "capsnet"
    assert paper_row(Entry("literal", "capsnet-rw-crf-corr-literal")) == "capsnet-rw-crf-corr"
    assert paper_row(Entry("rw", "capsnet-rw-literal")) == "capsnet-rw"
    assert paper_row(Entry("global", "capsnet", {"field": "default"})) is None
    assert paper_row(Entry("capsnet", "capsnet"), {"field": "default"}) is None
    assert paper_row(Entry("capsnet", "capsnet"), {"capsules.types": 4}) == "capsnet"
    assert paper_row(Entry("none", "capsnet-rw-crf", {"crf.iterations": 0})) is None


def test_the_paper_stands_beside_and_is_marked(tmp_path) -> None:
    made_up(tmp_path / "out", {"capsnet": 0.2, "capsnet-rw-crf-corr": 0.6, "contextcaps": 0.7})
    tables = {table.name: table for table in report_tables(make_report(tmp_path / "out", RESAMPLES))}
    paper = tables["paper"]
    assert [row[2] for row in paper.texts()] == ["42.38", "56.71"]
    assert paper.texts()[1][3] == "+14.33"
    assert "another data set" in paper.notes[0]
    assert "does not define" in paper.notes[0]
    assert [row[-1] for row in tables["convergence"].texts()] == ["around 15", "–", "–"]


class Page(HTMLParser):
    """Tags and what they point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_documents(folder) -> None:
    ablation = write_ablation(folder, RESAMPLES)
    page = ablation.files["page"].read_text(encoding="utf-8")
    parsed = Page(page)
    assert parsed.tags.count("img") == 3  # differences, convergence, and the classes of the one that is no baseline
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in parsed.sources)
    for source in parsed.sources:
        assert not source.startswith("#") or f'id="{source[1:]}"' in page
    assert "script" not in parsed.tags
    markdown = ablation.files["markdown"].read_text(encoding="utf-8")
    document = json.loads(ablation.files["figures"].read_text(encoding="utf-8"))
    for said in (
        *findings(ablation.report),
        "contextcaps ablate --made-up",
        "a made-up device",
        "2026-01-02",
        "abc",
        "400 training, 50 validation and 50 test images",
    ):
        assert said in page
        assert said in markdown
        assert said in json.dumps(document, ensure_ascii=False)
    for name in re.findall(r"!\[[^]]*\]\((.*?)\)", markdown):
        assert (folder / name).is_file()
    assert document["models"][1]["difference"]["value"] == ablation.report.models[1].difference.value
    assert document["models"][1]["mAP_by_seed"].keys() == {"0", "1", "2"}


def test_names_with_markup_are_shown_and_not_obeyed(tmp_path, monkeypatch) -> None:
    nasty = "</th><script>alert(1)</script>|[a](b)"
    monkeypatch.setattr(ablated_runs, "CLASSES", (nasty, *CLASSES[1:]))
    plan = made_up(tmp_path / "out", SKILLS, seeds=1)
    dataclasses.replace(plan, base=dataclasses.replace(plan.base, data=f"folder:{nasty}")).write(
        tmp_path / "out", command=nasty
    )
    ablation = write_ablation(tmp_path / "out", RESAMPLES)
    page = ablation.files["page"].read_text(encoding="utf-8")
    assert "script" not in Page(page).tags
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4  # title twice, class, command
    markdown = ablation.files["markdown"].read_text(encoding="utf-8")
    assert "\\</th>\\<script>alert(1)\\</script>\\|[a\\](b)" in markdown
    assert not re.search(r"(?<!\\)<script", markdown)


def test_the_terminal_shows_the_table(folder) -> None:
    stream = io.StringIO()
    show_ablation(write_ablation(folder, RESAMPLES), Console(file=stream, width=80))
    text = stream.getvalue()
    assert "Better than capsnet: contextcaps (+" in text
    assert "…" not in text  # nothing is cut, though the console is narrow
    assert max(map(len, text.splitlines())) > 80
    assert "ablation.html" in text


def test_another_baseline(folder) -> None:
    plain, context = make_report(folder, RESAMPLES, "contextcaps").models
    there = make_report(folder, RESAMPLES).models[1].difference
    assert context.difference is None
    assert (plain.difference.value, plain.verdict) == (pytest.approx(-there.value), "worse")
    with pytest.raises(ValueError, match="baseline: expected one of"):
        make_report(folder, RESAMPLES, "gap")


@pytest.mark.long
def test_another_baseline_has_a_folder_of_its_own(tmp_path) -> None:
    out = tmp_path / "out"
    made_up(out, SKILLS)
    kept = {name: path.read_bytes() for name, path in write_ablation(out, RESAMPLES).files.items()}
    other = write_ablation(out, RESAMPLES, baseline="contextcaps")
    assert {path.parent for path in other.files.values()} == {out / "against-contextcaps"}
    assert "− contextcaps" in other.files["markdown"].read_text(encoding="utf-8")
    again = write_ablation(out, RESAMPLES, baseline="capsnet")
    assert {name: path.read_bytes() for name, path in again.files.items()} == kept


@pytest.mark.long
def test_pictures_of_models_that_were_dropped_go(tmp_path) -> None:
    out = tmp_path / "out"
    plan = made_up(out, {**SKILLS, "gap": 0.4})
    write_ablation(out, RESAMPLES)
    assert (out / "classes-gap.png").is_file()
    dataclasses.replace(plan, entries=plan.entries[:2]).write(out)
    write_ablation(out, RESAMPLES)
    assert [path.name for path in out.glob("classes-*.png")] == ["classes-contextcaps.png"]


@pytest.mark.long
def test_every_pair(tmp_path) -> None:
    out = tmp_path / "out"
    made_up(out, {"capsnet": 0.2, "contextcaps": 0.6, "gap": 0.61})
    report = make_report(out, RESAMPLES)
    found = {(pair.label, pair.other): pair for pair in report.pairs()}
    assert len(found) == 6
    means = {
        name: [precision(seed, skill).mean() for seed in range(3)]
        for name, skill in (("gap", 0.61), ("contextcaps", 0.6), ("capsnet", 0.2))
    }
    pair = found["gap", "contextcaps"]
    expected = difference(means["gap"], means["contextcaps"], means["capsnet"])
    assert as_tuple(pair.difference) == pytest.approx(expected, abs=1e-6)
    assert as_tuple(pair.difference)[0] == pytest.approx(-found["contextcaps", "gap"].difference.value)
    assert found["contextcaps", "capsnet"].is_shown
    table = next(each for each in report_tables(report) if each.name == "pairs")
    assert [column.heading for column in table.columns] == ["model", "capsnet", "contextcaps", "gap"]
    assert table.texts()[0][1] == ""
    assert table.texts()[1][1].endswith(" *")
    document = json.loads(write_ablation(out, RESAMPLES).files["figures"].read_text(encoding="utf-8"))
    assert len(document["pairs"]) == 6
    (out / "runs/gap").rename(tmp_path / "gone")
    assert "pairs" not in [each.name for each in report_tables(make_report(out, RESAMPLES))]  # the main table has it


@pytest.mark.long
def test_many_models_are_told_by_what_they_show(tmp_path) -> None:
    skills = {"capsnet": 0.4, "contextcaps": 0.9, "gap": 0.41, "gmp": 0.1, "ml-gcn": 1.0, "capsnet-rw": 0.4}
    made_up(tmp_path / "out", skills)
    report = make_report(tmp_path / "out", RESAMPLES)
    said = findings(report)
    verdicts = {model.label: model.verdict for model in report.models[1:]}
    for beginning, verdict in (("Better than", "better"), ("Worse than", "worse"), ("No difference", "not shown")):
        (sentence,) = [each for each in said if each.startswith(beginning)]
        assert [label for label in verdicts if f"{label} (" in sentence] == [
            label for label, each in verdicts.items() if each == verdict
        ]
    assert verdicts["contextcaps"] == "better"
    assert verdicts["gmp"] == "worse"
    assert "over seeds" in " ".join(said)
    write_ablation(tmp_path / "out", RESAMPLES)
    for seed in (1, 2):
        (tmp_path / f"out/runs/gmp/seed-{seed}/test_predictions.npz").unlink()
    mixed = " ".join(findings(make_report(tmp_path / "out", RESAMPLES)))
    assert re.search(r"gmp \([^)]*one seed, over images\)", mixed)
    assert mixed.count("one seed, over images") == 1


def test_the_page_says_what_each_model_was_trained_with(tmp_path) -> None:
    """Also where a try that came to its end later would now be chosen."""
    out = tmp_path / "out"
    plan = made_up(out, SKILLS, tries=2, try_lr=(1.0, 3.0), try_losses=())
    (entry, _) = plan.entries
    for number, value in ((1, 0.2), (2, 0.9)):
        folder = try_folder(out, entry, number)
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(f"epoch,val_mAP\n1,{value}\n")
        (folder / "run.json").write_text(json.dumps({"state": "finished"}))
    for seed in plan.seeds:
        path = out / "runs" / "capsnet" / f"seed-{seed}" / "config.yaml"
        path.write_text(plan.config(entry, seed, path.parent, **points(plan, entry)[0]).to_yaml())
    report = make_report(out, RESAMPLES)
    tables = {table.name: table for table in report_tables(report)}
    assert tables["table"].texts()[1][1] == "margin, 0.001"
    assert [(row[1], row[-1]) for row in tables["tries"].texts() if row[0] == "capsnet"] == [("1", "chosen"), ("2", "")]
    path.write_text(plan.config(entry, 2, path.parent, **points(plan, entry)[1]).to_yaml())
    with pytest.raises(RunError, match=r"was trained with lr 0\.003, but"):
        make_report(out, RESAMPLES)


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        *(("test_predictions.npz", length) for length in (0, 10, 60)),
        *(
            ("metrics.csv", text)
            for text in ("", "epoch,val_mAP\n", "epoch,val_mAP\n1,0.2\n2\n", "epoch,loss\n1,0.2\n")
        ),
    ],
)
def test_damaged_files_are_named(tmp_path, damaged, content) -> None:
    made_up(tmp_path / "out", SKILLS, seeds=1)
    path = tmp_path / "out/runs/contextcaps/seed-0" / damaged
    path.write_bytes(path.read_bytes()[:content] if isinstance(content, int) else content.encode())
    with pytest.raises(RunError, match=f"{damaged}: damaged.*run again"):
        make_report(tmp_path / "out", RESAMPLES)


def test_two_seeds_have_no_interval_for_each_class(tmp_path) -> None:
    made_up(tmp_path / "two", SKILLS, seeds=2)
    tables = report_tables(make_report(tmp_path / "two", RESAMPLES))
    table = next(each for each in tables if each.name.startswith("classes"))
    assert {row[2] for row in table.texts()} == {"–"}
    assert "wholly above" not in table.notes[0]


def test_one_seed_goes_by_images(tmp_path) -> None:
    made_up(tmp_path / "out", SKILLS, seeds=1)
    report = make_report(tmp_path / "out", RESAMPLES)
    context = report.models[1]
    assert np.isnan(context.difference.low)
    assert context.verdict == ("better" if context.image_difference.low > 0 else "not shown")
    assert "not another seed" in findings(report)[-1]
    write_ablation(tmp_path / "out", RESAMPLES)


def test_the_table_says_what_each_interval_is_over(tmp_path) -> None:
    made_up(tmp_path / "one", SKILLS, seeds=1)
    made_up(tmp_path / "some", SKILLS, seeds=2)
    notes = [report_tables(make_report(tmp_path / name, RESAMPLES))[0].notes[0] for name in ("one", "some")]
    (tmp_path / "some/runs/contextcaps/seed-1/test_predictions.npz").unlink()
    mixed = report_tables(make_report(tmp_path / "some", RESAMPLES))[0].notes[0]
    assert ["over seeds (Student" in note for note in (*notes, mixed)] == [False, True, True]
    assert ["ith a single seed" in note for note in (*notes, mixed)] == [True, False, True]


def test_what_is_missing_is_said(tmp_path) -> None:
    out = tmp_path / "out"
    plan = made_up(out, SKILLS)
    (out / "runs" / "capsnet" / "seed-1" / "test_predictions.npz").unlink()
    report = make_report(out, RESAMPLES)
    assert report.missing == ("capsnet, seed 1",)
    assert report.models[1].pairs == 2
    plain, context = ([precision(seed, skill).mean() for seed in range(3)] for skill in (0.2, 0.6))
    spread = report.spread
    assert spread.degrees == 3
    assert spread.deviation**2 == pytest.approx((np.var(plain[::2], ddof=1) + 2 * np.var(context, ddof=1)) / 3)
    value, half = np.mean(context[::2]) - np.mean(plain[::2]), 3.18244631 * spread.deviation
    assert as_tuple(report.models[1].difference) == pytest.approx((value, value - half, value + half), abs=1e-6)
    assert "capsnet, seed 1" in findings(report)[-1]
    (out / "runs" / "contextcaps" / "seed-2" / "run.json").write_text("{}")
    assert len(make_report(out, RESAMPLES).missing) == 2
    plan.write(tmp_path)
    with pytest.raises(RunError, match="no run is finished"):
        make_report(tmp_path)


def test_without_the_baseline_there_are_no_differences(tmp_path) -> None:
    out = tmp_path / "out"
    made_up(out, SKILLS, seeds=1)
    (out / "runs" / "capsnet" / "seed-0" / "test_predictions.npz").unlink()
    ablation = write_ablation(out, RESAMPLES)
    (context,) = ablation.report.models
    assert (context.difference, context.verdict, context.gains) == (None, "no pair", ())
    assert findings(ablation.report) == ["Not finished, and not in any figure: capsnet, seed 0."]


def test_copied_data_are_the_same_data(tmp_path) -> None:
    """Runs that did not write down the contents are told by fingerprints alone."""
    out = tmp_path / "out"
    made_up(out, {**SKILLS, "gap": 0.3}, seeds=1)

    def change(label: str, **facts: object) -> None:
        path = out / "runs" / label / "seed-0" / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))

    elsewhere, contents = {"train": "c", "val": "d"}, {"train": "x", "val": "y"}
    change("gap", fingerprints=elsewhere, contents=contents)
    with pytest.raises(RunError, match="trained on other images"):
        make_report(out, RESAMPLES)
    change("contextcaps", contents=contents)  # the fingerprint of the first run, which says nothing of its contents
    assert len(make_report(out, RESAMPLES).models) == 3
    change("gap", contents={"train": "x", "val": "z"})
    with pytest.raises(RunError, match="trained on other images"):
        make_report(out, RESAMPLES)


def test_models_that_are_equal_to_the_bit(tmp_path) -> None:
    made_up(tmp_path / "out", {"capsnet": 0.2, "twin=capsnet": 0.2})
    ablation = write_ablation(tmp_path / "out", RESAMPLES)
    assert ablation.report.models[1].verdict == "not shown"
    assert ablation.files["differences"].read_bytes().startswith(b"\x89PNG")


def test_other_images_are_refused(tmp_path) -> None:
    out = tmp_path / "out"
    plan = made_up(out, SKILLS, seeds=1)
    write_run(plan, tmp_path / "other", "contextcaps", 0, 0.6, data_seed=1)
    (tmp_path / "other/runs/contextcaps/seed-0/test_predictions.npz").replace(
        out / "runs/contextcaps/seed-0/test_predictions.npz"
    )
    with pytest.raises(RunError, match="measured on other images"):
        make_report(out)
    facts = out / "runs/contextcaps/seed-0/run.json"
    facts.write_text(facts.read_text().replace('"a"', '"c"'))
    with pytest.raises(RunError, match="trained on other images"):
        make_report(out)


def test_an_undefined_difference_is_called_so(tmp_path) -> None:
    """Neither a difference nor none."""
    made_up(tmp_path / "out", SKILLS, seeds=1)
    report = make_report(tmp_path / "out", RESAMPLES)
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    undefined = dataclasses.replace(report.models[1], difference=nothing, image_difference=nothing)
    assert undefined.verdict == "undefined"
    told = findings(dataclasses.replace(report, models=(report.models[0], undefined)))[0]
    assert told == "The difference to capsnet is undefined for: contextcaps (– –)."
