"""The check of the GPU paths, as far as it runs without a GPU: real and planted processes."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import offline_kit
from benchmarks.gpu.gpu_check import main
from benchmarks.gpu.gpu_jobs import (
    COMPILED,
    GOAL,
    PARTS,
    RECIPES,
    TESTS,
    Case,
    Plan,
    run_part,
)
from benchmarks.gpu.gpu_page import (
    BROKEN,
    HELD,
    NOT_DECIDED,
    NOT_MEASURED,
    Verdict,
    at_most,
    judge,
    write_page,
)
from benchmarks.gpu.gpu_serving import batches_so_far
from benchmarks.gpu.offline_kit import PACKED_FROM, source_state, unpack
from entry_point.serving.serving_metrics import ServingMetrics

RECIPE = RECIPES[0]
PLANTED = {
    "images_per_s": 2800.0,
    "data_wait_pct": 0.3,
    "step_ms_p50": 91.0,
    "step_ms_p99": 99.0,
    "headspace": 1.003,
    "loss": 3.9,
}
Order = dict[str, Any]
Judge = Callable[..., dict[str, Verdict]]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Runs a part with planted jobs in the place of its own; returns verdicts by promise."""

    def run(part: str, change: Callable[[Case], Order] = lambda _: {}) -> dict[str, Verdict]:
        monkeypatch.setattr(f"{run_part.__module__}.data_set", lambda _: _planted(DATA, {}))
        plan = Plan("cuda", tmp_path)
        cases = [_planted(case, change(case)) for case in PARTS[part](plan)]
        result = run_part(plan, part, cases, tmp_path / "out")
        return {v.promise: v for v in judge({part: result}) if v.part == part}

    return run


DATA = Case("data set", (), 100)


def _planted(case: Case, order: Order) -> Case:
    """The case with a planted job: metrics of two epochs, which differ a little by round."""
    metrics = {key: value * (1 + 0.0005 * case.round) for key, value in PLANTED.items()}
    metrics |= order.pop("metrics", {})
    records = [{"epoch": epoch, **metrics} for epoch in (0, 1, 1, 1)]
    arguments = ("tests.benchmarks.planted_job", json.dumps({"metrics": records, **order}))
    return replace(case, arguments=arguments, estimate=order.get("estimate", 100))


def words(found: dict[str, Verdict], name: str = "") -> set[str]:
    return {verdict.word for promise, verdict in found.items() if promise.startswith(name)}


def only(name: str, round: int, **order: Any) -> Callable[[Case], Order]:
    """The order for one round of a case."""
    return lambda case: dict(order) if (case.name, case.round) == (name, round) else {}


def test_real_jobs_measure_what_the_verdicts_and_the_page_read(tmp_path: Path) -> None:
    plan, out = Plan("cpu", tmp_path / "work"), tmp_path / "out"
    cases = {case.name: case for part in ("goal", "peers") for case in PARTS[part](plan)}
    torchvision = next(name for name in cases if "torchvision" in name)
    some = [replace(cases[name], estimate=200) for name in (GOAL, torchvision)]
    own, others = run_part(plan, "goal", some, out)["outcomes"]
    assert (own["code"], others["code"]) == (0, 0), (own, others)
    for one in (own, others):
        assert min(one["values"]["images_per_s"]) > 0 and one["values"]["cores"][0] > 0
    assert own["values"]["headspace"][0] > 0 and len(own["values"]["step_ms_p50"]) == 2
    assert f"=== {GOAL}, round 3\n" in (out / "goal.log").read_text()
    assert main(["page", f"out={out}"]) in (0, 1)  # a dry run's figures may break promises
    assert "A dry run on a CPU" in (out / "gpu.md").read_text()


def test_without_a_fault_every_promise_is_held(judged: Judge) -> None:
    faster: Order = {"step_ms_p50": 60.0, "step_ms_p99": 65.0}
    for part in ("goal", "recipes", "peers"):
        found = judged(part, lambda c: {"metrics": faster} if c.name == COMPILED else {})
        assert words(found) == {HELD}, found


def test_what_fails_breaks_a_promise_and_what_is_cut_off_or_missing_does_not(
    judged: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged("goal", only(GOAL, 1, code=1, said="CUDA error: misaligned address"))
    assert words(found, f"{GOAL}, 4 cores") == {BROKEN}
    reason = f"{GOAL}, round 1: exit code 1: CUDA error: misaligned address"
    assert reason in {verdict.reason for verdict in found.values()}
    assert words(found, f"{COMPILED}: steps") == {NOT_MEASURED}  # nothing to compare with
    found = judged("goal", only(COMPILED, 2, hangs=True, estimate=0.3))
    assert words(found, COMPILED) == {NOT_MEASURED} and words(found, GOAL) == {HELD}
    assert "cut off: killed after" in found[f"{COMPILED}, 8 cores: waits for less than 1 %"].reason
    found = judged("goal", only(GOAL, 3, estimate=1000))
    assert words(found, GOAL) == {NOT_MEASURED} and "skipped" in capsys.readouterr().out
    found = judged("goal", only(GOAL, 2, metrics={"headspace": float("nan")}))
    assert words(found, f"{GOAL}: at most 2 %") == {NOT_MEASURED}
    found = judged("peers", lambda case: {"code": 1} if "torchvision" in case.name else {})
    assert [verdict.word for verdict in found.values()].count(NOT_MEASURED) == 1


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((1.1, 1.11, 1.1), BROKEN),
        ((1.0, 1.06, 1.02), NOT_DECIDED),  # the mean is above, but the spread too large
        ((1.0, 1.04, 1.01), NOT_DECIDED),
        ((1.0, 1.001, 1.0), HELD),
        ((1.0, 1.0), NOT_MEASURED),
    ],
)
def test_two_percent_are_judged_by_the_spread_of_three_values(
    values: Sequence[float], word: str
) -> None:
    assert at_most(values, 1.02)[0] == word


@pytest.mark.parametrize(
    ("compiled", "word"), [(3.91, HELD), (4.2, BROKEN)], ids=["alike", "learns otherwise"]
)
def test_a_recipe_must_learn_compiled_as_it_does_eagerly(
    compiled: float, word: str, judged: Judge
) -> None:
    def change(case: Case) -> Order:
        return {"metrics": {"loss": compiled if case.name.endswith("compiled") else 3.9}}

    assert words(judged("recipes", change), f"{RECIPE}: compiled losses") == {word}


PASSES, FAILS = "def test_one(): pass\n", "def test_two(): assert False\n"


@pytest.mark.parametrize(
    ("text", "word", "reason"),
    [
        (PASSES, HELD, "1 passed, 0 skipped"),
        (PASSES + FAILS, BROKEN, "1 failed, 1 passed"),
        ("import no_such_module\n" + PASSES, BROKEN, "1 error"),
        ("import pytest\npytestmark = pytest.mark.skip\n" + PASSES, NOT_MEASURED, "0 passed"),
        ("import os\ndef test_one(): os._exit(0)\n", NOT_MEASURED, "0 passed"),
    ],
    ids=["pass", "fail", "error", "skipped", "exit"],
)
def test_the_verdict_on_a_test_run(
    text: str, word: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take long to import
    monkeypatch.setattr(f"{run_part.__module__}.data_set", lambda _: _planted(DATA, {}))
    file = tmp_path / "test_planted.py"
    file.write_text(text)
    options = ("-q", f"--rootdir={tmp_path}", "-c", "/dev/null")
    case = Case(TESTS, ("pytest", *options, str(file)), 30, timed=False)
    result = run_part(Plan("cpu", tmp_path / "work"), "tests", [case], tmp_path / "out")
    found = judge({"tests": result})[0]
    assert found.word == word and reason in found.reason, found


def test_cases_run_on_their_cores_and_untimed_ones_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{run_part.__module__}.data_set", lambda _: _planted(DATA, {}))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "meeting.py").write_text(
        "import json, os, pathlib, sys, time\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "(place / sys.argv[1]).touch()\n"
        "while not (place / sys.argv[2]).exists(): time.sleep(0.01)\n"
        "print(json.dumps({'n': len(os.sched_getaffinity(0))}))\n"
    )
    before = os.sched_getaffinity(0)
    cases = [
        Case("one", ("meeting", "a", "b"), 30, cores=1, timed=False),
        Case("other", ("meeting", "b", "a"), 30, timed=False),
    ]
    result = run_part(Plan("cpu", tmp_path / "work"), "tests", cases, tmp_path / "out")
    assert [one["values"]["n"] for one in result["outcomes"]] == [1, len(before)]
    assert os.sched_getaffinity(0) == before


NVIDIA_SMI = "#!/bin/sh\necho '1200, 84, {software}, Not Active'\n"


@pytest.mark.parametrize(("software", "word"), [("Active", NOT_MEASURED), ("Not Active", HELD)])
def test_figures_of_a_gpu_that_slowed_itself_for_heat_do_not_count(
    software: str, word: str, judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI.format(software=software))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    assert words(judged("goal"), f"{GOAL}, 4 cores") == {word}
    outcomes = json.loads((tmp_path / "out" / "goal.json").read_text())["outcomes"]
    assert [clock["MHz"] for clock in outcomes[0]["clocks"]] == [1200, 1200]


def test_the_page_is_of_one_commit_and_a_part_of_it_replaces_no_whole_one(
    judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    for part in ("goal", "recipes", "peers"):
        judged(part)
    out, pages = tmp_path / "out", tmp_path / "results"
    gpu = {"machine": "NVIDIA H100, a CPU, 16 CPUs"}
    results = {part: json.loads((out / f"{part}.json").read_text()) | gpu for part in PARTS
               if (out / f"{part}.json").exists()}  # fmt: skip
    assert write_page({"recipes": results["recipes"]}, out) == 0
    assert write_page(results, out) == 1 - (words(dict(_promises(results))) <= {HELD})
    assert {path.name for path in pages.glob("*.md")} == {"gpu-h100.md", "gpu-h100-recipes.md"}
    text = (pages / "gpu-h100.md").read_text()
    assert "| this template | 2803 | 0.3 |" in text and "input from memory" in text
    for theme in ("light", "dark"):
        assert "2803" in (pages / "plots" / f"gpu-h100-{theme}.svg").read_text()
    results["peers"] |= {"commit": "abc"}
    with pytest.raises(ValueError, match="the parts recipes and peers differ: commit"):
        write_page(results, out)


def _promises(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    return [(verdict.promise, verdict) for verdict in judge(results) if verdict.part in results]


def test_all_but_dali_fits_into_ten_minutes_on_the_card() -> None:
    seconds = 40.0  # the data set
    for part, cases in PARTS.items():
        some = [case for case in cases(Plan("cuda", Path())) if "DALI" not in case.name]
        each = [case.estimate for case in some]
        seconds += max(each) if part == "tests" else sum(each)
    assert seconds < 600, seconds


def test_the_servers_metrics_tell_images_and_batches() -> None:
    metrics = ServingMetrics(lambda: 0)
    for images in (1, 8, 3):
        metrics.batch(images)
    assert batches_so_far(metrics.page().decode()) == (12, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "torch finds no CUDA device; device=cpu makes a dry run"),
        (["gaol"], f"gaol: must be some of {', '.join(PARTS)}, page, device=cuda|cpu, "),
        (["device=gpu"], "device=gpu: must be some of "),
        (["page", "out=/no/such/folder"], "out=/no/such/folder: holds no part's result"),
    ],
)
def test_what_cannot_run_is_one_line(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"gpu-check: {said}")


def test_a_folder_of_wheels_becomes_an_environment_once(tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    folder.mkdir()
    with zipfile.ZipFile(folder / "sample-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sample_of_ours.py", "answer = 42\n")
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            wheel.writestr(f"sample-1.0.dist-info/{name}", text)
    (folder / "packed-from.json").write_text('["abc", false, "f00"]')
    environment = unpack(folder, tmp_path / "kit")
    assert environment[PACKED_FROM] == '["abc", false, "f00"]'
    program = "import sample_of_ours, benchmarks.gpu.gpu_data; print(sample_of_ours.answer)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "42\n"
    kept = tmp_path / "kit" / "site" / "kept"
    kept.touch()
    unpack(folder, tmp_path / "kit")
    assert kept.exists()
    with pytest.raises(SystemExit, match="holds no wheel"):
        offline_kit.main(["run", str(tmp_path)])


def test_a_copy_without_the_repository_has_the_commit_that_its_kit_was_packed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, dirty, files = source_state()
    assert re.fullmatch("[0-9a-f]{12}", commit) and dirty is not None
    copy = tmp_path / "copy"
    for folder in offline_kit.SOURCE_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(offline_kit.ROOT / folder, copy / folder, ignore=ignored)
    monkeypatch.setattr(offline_kit, "ROOT", copy)
    assert source_state() == ("unknown", None, files)
    monkeypatch.setenv(PACKED_FROM, f'["{commit}", false, "{files}"]')
    assert source_state() == (commit, False, files)
    (copy / "benchmarks" / "measure.py").write_text("")
    assert source_state()[:2] == ("unknown", None)
