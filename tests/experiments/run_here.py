"""Jobs of an ablation done in the process of the tests, which has torch already."""

import json
from collections.abc import Iterable

from contextcaps.experiments.ablation.running import Job, Runner
from contextcaps.experiments.ablation.worker import work


def run_here(runner: Runner, jobs: Iterable[Job]) -> None:
    """Do all jobs one after the other; to be put in the place of `Runner.run`."""
    jobs = list(jobs)
    for job in jobs:
        runner.watch.add(job.name, job.folder, job.config.epochs, job.is_done)
    for job in jobs:
        if not job.is_done:
            work(job.folder, json.loads(json.dumps(job.order())))
            runner.watch.end(job.name, 1.0)
