"""Runs the cases of a part, each with a deadline, and keeps what they leave as JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from benchmarks.gpu.gpu_machine import Origin, clocks, facts, lacks, origin
from benchmarks.gpu.gpu_plan import DATA, Case, Plan
from benchmarks.pipelines.process_tree import cpu_seconds

ENDED, CUT_OFF, SKIPPED = "ended", "cut off", "skipped"
PATIENCE = 3.0
"""A case that takes so many times its estimate hangs."""
LOGGED_LINES = 200
"""Of each case, the last."""
JUNIT = "junit.xml"


@dataclass
class Outcome:
    """How a case ended, and what it measured."""

    case: str
    round: int
    ended: str
    estimate: float
    seconds: float = 0.0
    code: int | None = None
    """Exit code, if it ended by itself; below 0: by a signal that this program did not send."""
    why: str = ""
    """Why it was skipped, cut off or failed."""
    values: dict[str, Any] = field(default_factory=dict)
    clocks: list[dict[str, float]] = field(default_factory=list)
    """Of the GPU, before and after."""


@dataclass
class Result:
    """What one part leaves."""

    part: str
    origin: Origin
    facts: dict[str, str]
    lacks: dict[str, str]
    outcomes: list[Outcome] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1)
        (folder / f"{self.part}.json").write_text(text, encoding="utf-8")


def read_results(folder: Path, parts: Sequence[str]) -> dict[str, Result]:
    """The parts that have run."""
    found = {}
    for part in parts:
        path = folder / f"{part}.json"
        if path.exists():
            text = json.loads(path.read_text(encoding="utf-8"))
            outcomes = [Outcome(**each) for each in text.pop("outcomes")]
            found[part] = Result(**{**text, "origin": Origin(**text["origin"])}, outcomes=outcomes)
    return found


def run_part(plan: Plan, part: str, cases: Sequence[Case], folder: Path) -> Result:
    """Run the cases that nothing keeps from running.

    FOLDER/PART.json is rewritten after each, as the machine may be taken away at any time.
    """
    result = Result(part, origin(plan), facts(), lacks(plan))
    missing = dict(result.lacks)
    for name, lack in missing.items():
        _say(f"lacks {name}: {lack}")
    result.write(folder)
    _say(f"{part}: {len(cases)} cases, about {sum(c.estimate for c in cases) / 60:.1f} minutes")
    log = folder / f"{part}.log"
    log.write_text("", encoding="utf-8")
    for case in cases:
        outcome = _run_or_skip(plan, case, missing, log)
        if case.name == DATA and outcome.code != 0:
            missing[DATA] = f"no data set: {outcome.why}"
        result.outcomes.append(outcome)
        result.write(folder)
    return result


def _run_or_skip(plan: Plan, case: Case, missing: dict[str, str], log: Path) -> Outcome:
    estimate = round(case.estimate, 1)
    _say(f"{case.name}, round {case.round}: about {case.estimate:.0f} s")
    why = next((missing[need] for need in case.needs if need in missing), "")
    if not why and case.estimate > plan.seconds_left:
        why = f"takes about {case.estimate:.0f} s, {max(0, plan.seconds_left):.0f} s are left"
    outcome = Outcome(case.name, case.round, SKIPPED, estimate, why=why)
    if not why:
        outcome = run_case(plan, case, log)
    ended = f"exit code {outcome.code}" if outcome.ended == ENDED else outcome.ended
    _say(f"  {ended} after {outcome.seconds:.0f} s: {outcome.why}")
    return outcome


def run_case(plan: Plan, case: Case, log: Path) -> Outcome:
    """Run the case to its end, or for PATIENCE times its estimate, or until the time is up."""
    root = plan.work / "cases" / case.folder
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    outcome = Outcome(case.name, case.round, ENDED, round(case.estimate, 1))
    seconds = min(PATIENCE * case.estimate, plan.seconds_left)
    before, began = clocks(), time.monotonic()
    with (root / "log").open("w", encoding="utf-8") as output:
        job = _start(case, root, output)
        in_time, cores = _watch(job, root, began + seconds)
    outcome.seconds = round(time.monotonic() - began, 1)
    outcome.clocks = [before, clocks()]
    lines = (root / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    with log.open("a", encoding="utf-8") as whole:
        whole.write("\n".join([f"=== {case.name}, round {case.round}", *lines[-LOGGED_LINES:], ""]))
    if not in_time:
        outcome.ended, outcome.why = CUT_OFF, f"killed after {outcome.seconds:.0f} s"
        return outcome
    outcome.code = job.returncode
    outcome.why = _last_words(root, lines) if outcome.code else ""
    outcome.values = _values(root, lines) | ({} if cores is None else {"cores": cores})
    return outcome


def _start(case: Case, root: Path, output: TextIO) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "ML_ROOT": str(root), "PYTHONUNBUFFERED": "1"}
    # The supervisor sets it; some cases run without one.
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    environment["PYTEST_ADDOPTS"] = f"-p no:cacheprovider --junit-xml={root / JUNIT}"
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: case.cores])  # the process inherits it
    try:
        command = [sys.executable, "-m", *case.arguments]
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        os.sched_setaffinity(0, allowed)


def _watch(job: subprocess.Popen[bytes], root: Path, deadline: float) -> tuple[bool, float | None]:
    """Wait until the job ends, or kill it; returns whether it ended in time, and how many cores it
    kept busy between its last two log records, as seen every 0.1 s."""
    seen, began, before, cores = 0, time.monotonic(), 0.0, None
    while job.poll() is None:
        if time.monotonic() > deadline:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            return False, None
        logged = sum("images_per_s" in record for record in read_records(root))
        if logged > seen:
            now, after = time.monotonic(), cpu_seconds(job.pid)
            cores = (after - before) / (now - began)
            seen, began, before = logged, now, after
        time.sleep(0.1)
    return True, cores


def read_records(root: Path) -> list[dict[str, float]]:
    path = root / "output" / "data" / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def _last_words(root: Path, lines: Sequence[str]) -> str:
    """A job's reason for its failure, or the last line of any process."""
    failure = root / "output" / "failure"
    text = failure.read_text(encoding="utf-8").split("\n")[0] if failure.exists() else ""
    return (text or (lines[-1].strip("= ") if lines else ""))[:300]


def _values(root: Path, lines: Sequence[str]) -> dict[str, Any]:
    """A test run's counts, a job's newest metrics, or what the last line has as JSON."""
    if (junit := root / JUNIT).exists():
        suite = ElementTree.parse(junit).getroot().find("testsuite")
        assert suite is not None
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        return {**counts, "passed": counts["tests"] - sum(list(counts.values())[1:])}
    if records := read_records(root):
        return {key: value for record in records for key, value in record.items()}
    if lines and lines[-1].startswith("{"):
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
