"""Faults planted as real processes into a dry run of the GPU check: each gets the right verdict."""

import json
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import gpu_machine
from benchmarks.gpu.gpu_check import main as gpu_check
from benchmarks.gpu.gpu_plan import DATA, PARTS, Case, Plan, goal, options, peers
from benchmarks.gpu.gpu_runs import run_part
from benchmarks.gpu.gpu_verdicts import (
    BROKEN,
    FAST,
    GOAL,
    HELD,
    NOT_DECIDED,
    NOT_MEASURED,
    PROMISES,
    Verdict,
    judge,
)

ROOT = Path(__file__).resolve().parents[2]
WAIT, STEP, SLOW_STEPS, FAST_MODEL = (promise for promise, _ in PROMISES["goal"])
EMA, COMPILED, _COMPILED_WAIT = (promise for promise, _ in PROMISES["options"])
TESTS = PROMISES["tests"][0][0]
METRICS = {
    "images_per_s": 2800.0,
    "data_wait_pct": 0.3,
    "headspace": 1.003,
    "step_ms_p50": 91.0,
    "step_ms_p99": 99.0,
}
Change = Callable[[Case], dict[str, object]]
"""What a planted job does otherwise than well."""
Judge = Callable[..., dict[str, Verdict]]


@pytest.fixture
def judged(tmp_path: Path) -> Judge:
    """Runs a part's cases, with planted jobs in their place, and returns verdicts by promise."""

    def run(part: str, change: Change = lambda _: {}, *, minutes: float = 9) -> dict[str, Verdict]:
        plan = Plan("cpu", tmp_path, minutes)
        cases = [_planted(case, change(case)) for case in PARTS[part](plan)]
        result = run_part(plan, part, cases, tmp_path / "out")
        found = {verdict.promise: verdict for verdict in judge({part: result})}
        others = [v.word for v in found.values() if v.part != part]
        assert set(others) == {NOT_MEASURED}
        return {promise: v for promise, v in found.items() if v.part == part}

    return run


def _planted(case: Case, order: dict[str, object]) -> Case:
    # Rounds differ a little, as they do.
    metrics = {key: value * (1 + 0.0005 * case.round) for key, value in METRICS.items()}
    order = {"metrics": metrics, **order}
    arguments = ("tests.benchmarks.planted_job", json.dumps(order))
    estimate = 0.3 if order.get("hangs") else float(str(order.get("estimate", 100)))
    return replace(case, arguments=arguments, estimate=estimate)


def only(name: str, round: int, **order: object) -> Change:
    """The order for one round of a case."""
    return lambda case: order if (case.name, case.round) == (name, round) else {}


def words(found: dict[str, Verdict]) -> list[str]:
    return [verdict.word for verdict in found.values()]


def test_without_a_fault_every_promise_is_held(judged: Judge) -> None:
    for part in ("goal", "options"):
        found = judged(part, lambda c: {"metrics": {**METRICS, "step_ms_p50": 80.0}}
                       if c.name == "compiled" else {})  # fmt: skip
        assert set(words(found)) == {HELD}, found


def test_a_goal_job_cut_off_at_the_deadline_is_not_measured(judged: Judge) -> None:
    found = judged("goal", only(GOAL, 2, hangs=True))
    assert words(found) == [NOT_MEASURED] * 3 + [HELD]
    assert f"{GOAL}, round 2: cut off: killed after" in found[WAIT].reason


def test_a_failing_goal_job_breaks_its_promises_although_other_rounds_are_good(
    judged: Judge,
) -> None:
    found = judged("goal", only(GOAL, 1, code=1, said="CUDA error: misaligned address"))
    assert words(found) == [BROKEN] * 3 + [HELD]
    reason = f"{GOAL}, round 1: exit code 1: CUDA error: misaligned address"
    assert found[WAIT].reason == reason


def test_a_job_that_a_signal_ends_before_the_deadline_has_failed(judged: Judge) -> None:
    found = judged("goal", only(FAST, 1, signal=9))
    assert found[FAST_MODEL].word == BROKEN and "exit code -9" in found[FAST_MODEL].reason


def test_a_failing_and_a_cut_off_contender_break_or_leave_open_the_comparison(
    judged: Judge,
) -> None:
    found = judged("options", only("EMA", 3, code=1))
    assert (found[EMA].word, found[COMPILED].word) == (BROKEN, HELD)
    found = judged("options", only("EMA", 1, hangs=True))
    assert found[EMA].word == NOT_MEASURED
    found = judged("options", only("eager", 1, code=1))  # nothing to compare with
    assert found[EMA].word == NOT_MEASURED and "no comparison: eager" in found[EMA].reason


@pytest.mark.parametrize(
    ("factors", "word"),
    [
        ((1.1, 1.11, 1.1), BROKEN),  # a slow contender
        ((1.0, 1.06, 1.02), NOT_DECIDED),  # the mean is above, but the spread too large
        ((1.0, 1.04, 1.01), NOT_DECIDED),  # the mean is below
        ((1.0, 1.001, 1.0), HELD),
    ],
)
def test_two_percent_are_judged_by_the_spread_of_three_rounds(
    factors: Sequence[float], word: str, judged: Judge
) -> None:
    def slow(case: Case) -> dict[str, object]:
        p50 = 91.0 * factors[case.round - 1] if case.name == "EMA" else 91.0
        return {"metrics": {**METRICS, "step_ms_p50": p50}}

    found = judged("options", slow)[EMA]
    assert found.word == word and " ± " in found.reason and "at most 1.02" in found.reason


def test_a_starved_goal_is_broken_and_a_missing_or_nan_figure_is_not_measured(
    judged: Judge,
) -> None:
    bad = {"data_wait_pct": 4.0, "headspace": 1.2, "step_ms_p99": 150.0}
    found = judged("goal", lambda _: {"metrics": {**METRICS, **bad}})
    assert words(found) == [BROKEN] * 3 + [HELD]
    nan = {**METRICS, "headspace": float("nan")}
    found = judged("goal", only(GOAL, 2, metrics=nan))
    assert (found[STEP].word, found[WAIT].word) == (NOT_MEASURED, HELD)
    nothing = judged("goal", only(GOAL, 2, metrics={"images_per_s": 1.0}))
    assert nothing[STEP].reason == f"{GOAL}: headspace is missing or not a number"


def test_a_case_that_does_not_fit_into_the_time_left_is_skipped(
    judged: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged("goal", only(GOAL, 3, estimate=1000))
    assert found[WAIT].word == NOT_MEASURED and found[FAST_MODEL].word == HELD
    assert "skipped: takes about 1000 s, 5" in found[WAIT].reason
    assert f"{GOAL}, round 3: about 1000 s" in capsys.readouterr().out


def test_without_a_data_set_nothing_is_measured_and_no_promise_broken(judged: Judge) -> None:
    found = judged("goal", only(DATA, 1, code=1, said="No space left on device"))
    assert set(words(found)) == {NOT_MEASURED}
    assert found[WAIT].reason.endswith("skipped: no data set: No space left on device")


def test_a_peer_that_fails_breaks_no_promise_of_this_template(judged: Judge) -> None:
    found = judged("peers", lambda case: {"code": 1} if "torchvision" in case.name else {})
    torchvision = [v for promise, v in found.items() if "torchvision" in promise]
    assert [v.word for v in torchvision] == [NOT_MEASURED] * 2
    assert "exit code 1" in torchvision[0].reason


PASSES, FAILS = "def test_one(): pass\n", "def test_two(): assert False\n"
ERRS = "import pytest\n@pytest.fixture\ndef broken(): 1 / 0\ndef test_two(broken): pass\n"
SKIPPED = "import pytest\npytestmark = pytest.mark.skip\n"


@pytest.mark.parametrize(
    ("text", "word", "reason"),
    [
        (PASSES, HELD, "1 passed, 0 skipped"),
        (PASSES + FAILS, BROKEN, "1 failed, 1 passed"),
        (PASSES + ERRS, BROKEN, "1 passed, 1 error"),
        ("import no_such_module\n" + PASSES, BROKEN, "1 error"),
        ("", NOT_MEASURED, "no test was collected"),
        (SKIPPED + PASSES, NOT_MEASURED, "0 passed, 1 skipped"),
        ("import os\ndef test_one(): os._exit(0)\n", NOT_MEASURED, "0 passed"),
        ("import time\n" + PASSES + "def test_two(): time.sleep(99)\n", NOT_MEASURED, "cut off"),
    ],
    ids=["pass", "fail", "error", "import", "none", "skipped", "exit", "hang"],
)
def test_the_verdict_on_a_test_run(
    text: str, word: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take long to import
    file = tmp_path / "test_planted.py"
    file.write_text(text)
    estimate = 2 if "sleep" in text else 30
    options = ("-q", f"--rootdir={tmp_path}", "-c", "/dev/null")
    case = Case("tests marked gpu", ("pytest", *options, str(file)), estimate)
    plan = Plan("cpu", tmp_path / "work", minutes=9)
    result = run_part(plan, "tests", [case], tmp_path / "out")
    found = judge({"tests": result})[0]
    assert (found.promise, found.word) == (TESTS, word), found
    assert reason in found.reason


def test_a_machine_without_compiler_and_ninja_is_told_what_to_install(tmp_path: Path) -> None:
    arguments = ["part=goal", "device=cpu", f"out={tmp_path / 'out'}", f"work={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.gpu_check", *arguments],
        cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr
    assert "lacks compiler: no C++ compiler" in done.stdout
    assert "lacks ninja: no ninja on the PATH: pip install ninja" in done.stdout
    for promise, _ in PROMISES["goal"]:
        line = next(line for line in done.stdout.splitlines() if promise in line)
        assert line.startswith(NOT_MEASURED) and "apt-get install g++" in line
    assert not (tmp_path / "cases").exists()  # no process was started


def test_without_python_headers_only_the_compiled_jobs_are_skipped(
    judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.delenv("CPATH", raising=False)
    found = judged("options")
    assert found[EMA].word == HELD and found[COMPILED].word == NOT_MEASURED
    assert f"no {tmp_path}/Python.h: apt-get install python3." in found[COMPILED].reason
    (tmp_path / "Python.h").touch()
    assert judged("options")[COMPILED].word != NOT_MEASURED


def test_with_little_shared_memory_only_the_dataloader_is_skipped(
    judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(gpu_machine, "installed", lambda _: True)
    found = judged("peers")
    skipped = [promise for promise, verdict in found.items() if verdict.word == NOT_MEASURED]
    assert skipped and all("torchvision" in promise for promise in skipped)
    assert len(found) - len(skipped) == 4
    assert "1 MB free in /dev/shm, 2 MB needed: mount -o remount" in found[skipped[0]].reason


def test_without_dali_its_contenders_are_not_measured(
    judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_machine, "installed", lambda _: False)
    reasons = [v.reason for promise, v in judged("peers").items() if promise.startswith("DALI")]
    assert len(reasons) == 4 and all("DALI is not installed" in reason for reason in reasons)


NVIDIA_SMI = """#!{python}
import pathlib
count = pathlib.Path({count!r})
calls = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(calls))
print(f'''
==============NVSMI LOG==============
GPU 00000000:00:04.0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : {now}
            HW Thermal Slowdown           : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : {{calls * 3000000}} us
        SW Thermal Slowdown               : {{calls * {step}}} us
    Temperature
        GPU Current Temp                  : 84 C
    Clocks
        Graphics                          : 1200 MHz
        SM                                : 1200 MHz
    Max Clocks
        SM                                : 1980 MHz''')
"""


@pytest.mark.parametrize(
    ("step", "now", "word"),
    [(900_000, "Not Active", NOT_MEASURED), (0, "Active", NOT_MEASURED), (0, "Not Active", HELD)],
    ids=["slowed", "older driver", "power cap alone"],
)
def test_figures_of_a_gpu_that_slowed_itself_for_heat_do_not_count(
    step: int, now: str, word: str, judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    count = str(tmp_path / "calls")
    tool.write_text(NVIDIA_SMI.format(python=sys.executable, count=count, now=now, step=step))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    assert shutil.which("nvidia-smi") == str(tool)
    found = judged("goal")
    assert words(found) == [word] * 4
    assert word == HELD or "Slowdown of the GPU" in found[WAIT].reason
    outcomes = json.loads((tmp_path / "out" / "goal.json").read_text())["outcomes"]
    assert [clock["MHz"] for clock in outcomes[0]["clocks"]] == [1200, 1200]
    assert int(Path(count).read_text()) == 2 * len(outcomes)  # never during a run


@pytest.mark.parametrize(
    ("field", "value"), [("commit", "abc"), ("files", "123"), ("machine", "NVIDIA H200")]
)
def test_parts_of_different_code_or_machines_are_not_mixed(
    field: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("cpu", tmp_path, minutes=9)
    for part in ("goal", "serving"):
        own = getattr(run_part(plan, part, [], tmp_path).origin, field)
    assert gpu_check(["part=page", f"out={tmp_path}"]) == 0
    assert (tmp_path / "gpu.md").exists()
    path = tmp_path / "serving.json"
    path.write_text(path.read_text().replace(json.dumps(own), json.dumps(value), 1))
    capsys.readouterr()
    assert gpu_check(["part=page", f"out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert f"the parts goal and serving differ: {field} {own} and {value}" in said


def test_contenders_alternate_on_four_cores_and_every_part_fits_into_a_command() -> None:
    plan = Plan("cuda", Path("nowhere"), minutes=9.5)
    names = [case.name for case in options(plan)]
    assert names == [DATA, *["eager", "EMA", "compiled"] * 3, "tf32"]
    assert [case.name for case in goal(plan)].count(GOAL) == 3
    trainings = [*goal(plan)[1:], *peers(plan)[1:], *options(plan)[1:]]
    assert {case.cores for case in trainings} == {4}
    seconds = {part: sum(case.estimate for case in cases(plan)) for part, cases in PARTS.items()}
    assert max(seconds.values()) < 60 * plan.minutes and sum(seconds.values()) < 60 * 28, seconds
