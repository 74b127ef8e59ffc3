"""The command `fedtailor claims`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing


def claims(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PAPER | PAPER/CLAIM …]", help="such as fedah/weights; none: all")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the runs, and of the page made of them")] = Path(
        "runs/claims"
    ),
    plan: Annotated[bool, typer.Option("--plan", help="only say what the missing runs would cost")] = False,
    run: Annotated[bool, typer.Option("--run", help="carry out the missing runs, then write the page")] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            help="write the page, its pictures and the finished runs into this folder; those in it already count"
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="judge.json of bench.judge, for claims on tuned methods"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="runs at a time, each a process of its own")] = 1,
) -> None:
    """List the papers' headline claims with the verdicts of the runs that test them: holds, does not, open.

    Example: `fedtailor claims fedah/weights --run --workers 2`

    Each claim is tested under an affordable protocol, paired by seed and client. Claims share runs. The same command given again resumes
    where it was interrupted; `--plan` measures seconds per round and says how many hours are left, which the page then shows, too.
    The folder of the page keeps the scores of finished runs (evidence-runs.json). They are not run again, so that a campaign can go on on
    another machine.
    """
    with importing():
        from fedtailor.cli.jobs import estimated, run_all, say_time
        from fedtailor.papers.claims.claim import jobs_of, named
        from fedtailor.papers.claims.evidence import evidence_of, remembered
        from fedtailor.papers.claims.finished import finished_runs, keep_runs, kept_runs, run_of
        from fedtailor.papers.estimate import TimeEstimate
        from fedtailor.report.evidence import listing, plan_listing, write_evidence
        from fedtailor.report.sheets import as_rich
    asked = named(names or [])
    kept = kept_runs(page) if page else {}
    jobs = [job for job in jobs_of(asked, out) if not run_of(job, kept)]
    left = estimated(console, jobs) if plan or run else TimeEstimate()
    seconds = remembered(out, left.seconds)
    gaps = left.gaps
    if run and not plan:
        say_time(console, left, workers)
        ended = run_all(console, jobs, workers, left)
        if ended is None:
            console.print("Interrupted. The same command carries on.")
            raise typer.Exit(130)
        gaps = ended.gaps
    fresh = finished_runs(jobs)
    finished = {**kept, **fresh}
    found = evidence_of(asked, out, seconds, tuned, finished)
    console.print(as_rich(plan_listing(found, workers) if plan else listing(found)))
    for folder in [] if plan else [*([out] if run else []), *([page] if page else [])]:
        written = [*write_evidence(found, folder), keep_runs(folder, finished if folder == out else fresh)]
        console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    for reason in dict.fromkeys(gaps.values()):
        console.print(f"Cannot be run: {reason}", style="yellow", soft_wrap=True)
