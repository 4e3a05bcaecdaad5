"""The ablation: a grid of models and seeds, trained under the same conditions, and a report of what came of it.

Whatever stops it, the same call goes on: what is finished is kept, what is not is resumed.
"""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from contextcaps.atomic import write_atomically
from contextcaps.data.cache import entry_lock
from contextcaps.data.problems import DataError
from contextcaps.data.source import have_same_data
from contextcaps.data.source_registry import absolute_source
from contextcaps.data.splits import open_part
from contextcaps.documents import counted
from contextcaps.experiments.ablation.choosing import adopt, choose, points, try_config, try_folder
from contextcaps.experiments.ablation.config import AblateConfig, ablate_command
from contextcaps.experiments.ablation.figures import write_figures
from contextcaps.experiments.ablation.findings import findings
from contextcaps.experiments.ablation.grid import Entry, Plan, plan_file
from contextcaps.experiments.ablation.page import ablation_html, ablation_markdown, report_document
from contextcaps.experiments.ablation.report import NothingFinished, Report, make_report
from contextcaps.experiments.ablation.results import run_folder
from contextcaps.experiments.ablation.running import AtOnce, Failure, Job, Runner
from contextcaps.experiments.ablation.tables import report_tables
from contextcaps.experiments.ablation.watching import Watch
from contextcaps.models.registry import require_buildable
from contextcaps.training.data import Part, open_training_parts
from contextcaps.training.processes import resolve_processes
from contextcaps.training.resolved import network_config, with_absolute_places, with_fitting_batches
from contextcaps.training.runs import RunError, now, require_writable
from contextcaps.training.starting import starting_model, with_starting_model

__all__ = ["Ablation", "ablate", "show_ablation", "write_ablation"]

_ON_TERMINAL = ("table", "convergence", "cost")
"""Names of the tables that are shown there; the page has all."""


@dataclasses.dataclass(frozen=True)
class Ablation:
    """An ablation and what it wrote."""

    folder: Path
    report: Report
    files: dict[str, Path]
    """Name → where: page, markdown, figures, and the pictures."""
    failures: tuple[Failure, ...]
    """Runs that failed; the others are in the report."""

    def require_success(self) -> None:
        """Raise an OSError if any run failed."""
        if self.failures:
            count = len(self.failures)
            raise OSError(f"{counted(count, 'run')} failed; the same command tries again")


def ablate(config: AblateConfig | None = None, *, progress: bool = True, **settings: Any) -> Ablation:
    """Train every model with every seed on the same data, division, schedule and budget, and report what came of it.

        contextcaps.ablate(models="capsnet,contextcaps", data="scenes", seeds=3, epochs=10).files["page"]

    Args:
        config: models, seeds, and how to train.
        progress: show progress on the error stream.
        settings: fields of `AblateConfig` or `TrainConfig` that replace the configuration's.

    Raises:
        ValueError: something about the models, the data or the folder is wrong, or the folder holds another plan.
        KeyboardInterrupt: somebody pressed Ctrl-C; the same call goes on.
    """
    config = AblateConfig.from_settings(config, **settings)
    folder = config.folder
    if config.report_only:
        return write_ablation(folder, config.resamples, baseline=config.baseline)
    test_data = None if config.test_data is None else absolute_source(config.test_data)
    train = with_absolute_places(config.train)
    start = starting_model(train)
    train = with_starting_model(train, start)
    config = dataclasses.replace(config, train=train, test_data=test_data)
    resolve_processes(config.train)  # refuses what this machine cannot do
    plan = Plan.from_config(config)
    for entry in plan.entries:
        points(plan, entry)  # refuses more tries than there are points
        if start is not None:
            start.require_fitting(network_config(plan.config(entry, plan.seeds[0], None), ("one", "other")))
    _claim(folder, plan)
    with _alone(folder):
        plan.write(folder, command=ablate_command(config), begun=_begun(folder))
        parts = open_training_parts(plan.config(plan.entries[0], plan.seeds[0], None))
        for entry in plan.entries:
            of_entry = plan.config(entry, plan.seeds[0], None)
            require_buildable(network_config(of_entry, parts[0].classes), published=of_entry.start_from is None)
        plan = dataclasses.replace(plan, base=with_fitting_batches(plan.base, len(parts[0])))
        _require_test_apart(plan, parts)
        for part in parts:
            part.prepare(plan.base, progress)  # once, rather than by the first of several at once
        failures = _run(plan, folder, config.at_once, config.resamples, progress)
        try:
            result = write_ablation(folder, config.resamples, failures)
        except NothingFinished:
            if failures:
                raise RunError(f"no run came to an end; {failures[0].name}: {failures[0].why}") from None
            raise
    return result


def write_ablation(
    folder: Path, resamples: int | None = None, failures: Sequence[Failure] = (), baseline: str | None = None
) -> Ablation:
    """Write the report of what is finished in an ablation's folder: page, Markdown, JSON and pictures.

    With another baseline than the plan's it goes into a folder of its own there, `against-BASELINE`.
    """
    report = make_report(folder, resamples, baseline)
    if report.plan.baseline != report.document["baseline"]:
        folder = folder / f"against-{report.plan.baseline}"
        folder.mkdir(exist_ok=True)
    pictures = write_figures(report, folder)
    files = {
        "page": folder / "ablation.html",
        "markdown": folder / "ablation.md",
        "figures": folder / "ablation.json",
        **{path.stem: path for path in pictures},
    }
    document = json.dumps(report_document(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(files["figures"], document)
    write_atomically(files["markdown"], ablation_markdown(report))
    write_atomically(files["page"], ablation_html(report, folder))  # last: it shows all the others
    return Ablation(folder, report, files, tuple(failures))


def _run(plan: Plan, folder: Path, at_once: AtOnce, resamples: int | None, progress: bool) -> list[Failure]:
    """Run the tries, then the runs with what was chosen; return what failed."""
    with Watch(progress) as watch:
        runner = Runner(at_once, watch)
        if plan.tries > 1:
            runner.run(
                Job(
                    f"{entry.label}, try {number}",
                    try_folder(folder, entry, number),
                    try_config(plan, entry, number, folder),
                    test=False,
                )
                for entry in plan.entries
                for number in range(1, plan.tries + 1)
            )
        jobs = []
        for entry in plan.entries:
            try:
                chosen = choose(plan, entry, folder)
            except RunError as error:
                runner.failures.append(Failure(entry.label, str(error), folder / "tries" / entry.label))
                continue
            if chosen.tries:
                watch.say(f"{entry.label}: {', '.join(f'{name} {value}' for name, value in chosen.settings.items())}")
            adopt(plan, entry, chosen, folder, run_folder(folder, entry.label, plan.seeds[0]))
            jobs += [_job(plan, entry, seed, folder, chosen.settings, resamples) for seed in plan.seeds]
        # Seed by seed: whoever looks early, or stops, has all models.
        runner.run(sorted(jobs, key=lambda job: job.config.seed))
        return runner.failures


def _job(plan: Plan, entry: Entry, seed: int, folder: Path, settings: dict[str, Any], resamples: int | None) -> Job:
    place = run_folder(folder, entry.label, seed)
    return Job(
        f"{entry.label}, seed {seed}",
        place,
        plan.config(entry, seed, place, **settings),
        test=True,
        test_data=plan.test_data,
        resamples=resamples,
    )


def _claim(folder: Path, plan: Plan) -> None:
    """Make the folder, or refuse one that holds other files or an ablation with other settings."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: expected a folder for the ablation, got a file; choose another with --out")
    require_writable(folder, "--out")
    if plan_file(folder).exists():
        found = plan.differences(Plan.read(folder)[0])
        if found and _has_begun(folder):
            raise RunError(
                f"{folder}: holds an ablation with other settings ({'; '.join(found)}); choose another folder with "
                "--out, or ask for the same. More models and seeds can be added"
            )
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RunError(f"{folder}: expected an empty or a new folder for the ablation; choose another with --out")
    folder.mkdir(parents=True, exist_ok=True)


def _has_begun(folder: Path) -> bool:
    """Return whether any training has begun: a plan that failed before that can be replaced."""
    return any(folder.glob("runs/*/*/run.json")) or any(folder.glob("tries/*/*/run.json"))


def _require_test_apart(plan: Plan, parts: Sequence[Part]) -> None:
    """Refuse, before any training, test data that are missing or the same as those trained or validated on."""
    if plan.test_data is None or plan.test_data == plan.base.data:
        return
    tested = open_part(plan.test_data, ("test", "val"), on_bad=plan.base.on_bad)  # as `evaluate` opens it
    if any(have_same_data(tested, part.source) for part in parts):
        raise DataError(f"{plan.test_data}: expected other images to test on than those to train or validate on")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, and say how to go on where somebody stops it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(entry_lock(folder, "ablation"))
        except BlockingIOError:
            raise RunError(
                f"{folder}: another ablation is running here; wait for it, or choose another --out"
            ) from None
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped; what is finished is kept in {folder}, the same command goes on, and contextcaps ablate "
                f"--out {shlex.quote(str(folder))} --report-only shows what there is"
            ) from None


def _begun(folder: Path) -> str:
    with contextlib.suppress(RunError):
        return str(Plan.read(folder)[1].get("begun", now()))
    return now()


def show_ablation(ablation: Ablation, console: Console) -> None:
    """Print the main table, convergence and cost, what they show, and where the page is."""
    for table in report_tables(ablation.report):
        if table.name in _ON_TERMINAL:
            table.print(console, notes=False)
    for text in findings(ablation.report):
        console.print(text, highlight=False, markup=False)
    for failure in ablation.failures:
        console.print(f"Failed: {failure.name}: {failure.why} (log: {failure.log})", highlight=False, markup=False)
    console.print(f"\nThe whole report: {ablation.files['page']}", highlight=False, markup=False, soft_wrap=True)
