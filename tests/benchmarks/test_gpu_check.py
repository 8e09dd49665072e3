"""The check of the GPU paths, as far as it runs without a GPU."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import offline_kit
from benchmarks.gpu.gpu_check import (
    MINUTES,
    PARTS,
    PLANS,
    WITHOUT_A_NAME,
    Case,
    _values,
    main,
    make_data,
    run_case,
    run_part,
)
from benchmarks.gpu.gpu_page import (
    BROKEN,
    COMPILED,
    CUT_OFF,
    GOAL,
    HELD,
    NO_OPTION,
    NOT_DECIDED,
    NOT_MEASURED,
    OPTION,
    RECIPES,
    ROUNDS,
    SKIPPED,
    TESTS,
    Outcome,
    Result,
    judge,
    sources_hash,
    write_page,
)
from entry_point.job.program import UserError
from entry_point.job.run_folder import RunFolder
from tests.forked_python import forked_python

FULL, DRY = PLANS["cuda"], PLANS["cpu"]
FAILS = {"ended": "exit code 1", "why": "CUDA error"}
Fault = tuple[str, int, dict[str, Any]]
"""A case, its round, and what is otherwise than in a run that keeps every promise."""


def planted(part: str, *faults: Fault) -> dict[str, Result]:
    """Results of a part whose jobs keep every promise, but for the faults."""
    result = Result(part, "abc", "a CPU", "NVIDIA H100", "-", "torch")
    for case in PARTS[part](FULL):
        step = 60.0 if case.name == COMPILED else 91.0
        values = {
            "images_per_s": [2800.0] * ROUNDS,
            "data_wait_pct": [0.3, 0.4, 0.2],
            "step_ms_p50": [step + 0.01 * case.round],
            "step_ms_p99": [step + 5],
            "headspace": [1.003],
            "losses": [3.9, 3.8, 3.7],
            "cores": [3.2],
            "times one client": 4.0,
            "speed": "fast",
            "passed": 21,
            "said": "21 passed",
        }
        outcome = Outcome(case.name, case.round, case.estimate, seconds=20, values=values)
        for name, number, changes in faults:
            if (name, number) == (case.name, case.round):
                values |= {key: changes[key] for key in changes if key in values}
                of_outcome = {key: changes[key] for key in changes if key not in values}
                outcome = replace(outcome, **of_outcome)
        result.outcomes.append(outcome)
    return {part: result}


def words(results: dict[str, Result], promise: str = "") -> set[str]:
    return {word for judged, word, _ in judge(results) if judged.startswith(promise)}


def test_real_jobs_measure_what_the_verdicts_and_the_page_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = replace(DRY, work=tmp_path / "work"), tmp_path / "out"
    make_data(plan)

    def run(part: str, number: int) -> Outcome:
        case = replace(PARTS[part](plan)[number], estimate=150)
        run_part(plan, part, [case], out)
        return Result.read(out / f"{part}.json").outcomes[0]

    with forked_python(tmp_path / "python"):
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        own, peer, server = run("goal", 0), run("peers", -1), run("serving", 0)
    assert {one.ended for one in (own, peer, server)} == {"exit code 0"}, (own, peer, server)
    assert len(own.values["step_ms_p50"]) == 2 and len(own.values["losses"]) == 1
    assert own.values["headspace"][0] > 0
    assert peer.values["images_per_s"][0] > 0
    assert server.values["times one client"] > 0
    assert main(["page", f"out={out}"]) in (0, 1)  # a dry run's figures may break promises
    text = (out / "gpu.md").read_text()
    assert "A dry run" in text and f"files {sources_hash()}, commit " in text


def test_figures_leave_out_the_first_epoch_and_the_one_from_memory(tmp_path: Path) -> None:
    records = [
        {"epoch": line // 2, "images_per_s": 100 + line, "data_wait_pct": line, "loss": 1}
        for line in range(8)
    ]
    path = RunFolder(tmp_path).metrics
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    seen = [(line, 10.0 * line, 25.0 * line) for line in range(9)]  # 2.5 CPU seconds a second
    job = Case("a job", ("memory",), 30)
    values = _values(tmp_path, job, "", seen)
    assert values["images_per_s"] == [102.5, 104.5] and values["data_wait_pct"] == [2.5, 4.5]
    assert values["headspace"] == [106.5 / 103.5] and values["losses"] == [1, 1]
    assert values["cores"] == [2.5]
    values = _values(tmp_path, replace(job, arguments=()), "", seen)
    assert values["images_per_s"] == [102.5, 104.5, 106.5] and "headspace" not in values


@pytest.mark.parametrize(
    ("speeds", "cells"),
    [
        pytest.param((110, 221, 439), ["3", "221", "1.101 ± 0.0095", "yes"], id="faster"),
        pytest.param((99, 197, 396), ["3", "197", "0.988 ± 0.0072", "no"], id="slower"),
        pytest.param((101, 202, 440), ["3", "202", "1.040 ± 0.13", NOT_DECIDED], id="undecided"),
        pytest.param((None, 222, 439), ["2", "330.5", "1.104 ± 0.079", "yes"], id="one failed"),
        pytest.param((None, None, 440), ["1", "", "", NOT_MEASURED], id="two failed"),
    ],
)
def test_an_option_is_compared_with_none_of_the_same_round(
    speeds: tuple[float | None, ...], cells: list[str], tmp_path: Path
) -> None:
    faults: list[Fault] = []
    for number, (base, speed) in enumerate(zip((100, 200, 400), speeds, strict=True), 1):
        changes = FAILS if speed is None else {"images_per_s": [speed]}
        faults += [
            (NO_OPTION, number, {"images_per_s": [base]}),
            (OPTION + "CUDA graphs", number, changes),
        ]
    results = planted("options", *faults)
    results["options"].gpu = ""
    write_page(results, tmp_path)
    rows = re.findall(r"^\| (.+?) +\|(.*)\|$", (tmp_path / "gpu-options.md").read_text(), re.M)
    found = {option: [cell.strip() for cell in rest.split("|")] for option, rest in rows}
    assert found["CUDA graphs"] == cells and found["none"][2:] == ["1.000 ± 0", "no"]


@pytest.mark.parametrize("part", PARTS)
def test_without_a_fault_every_promise_is_held(part: str) -> None:
    assert words(planted(part)) <= {HELD}
    # Other loaders and options promise nothing.
    assert (part in ("peers", "options")) != bool(words(planted(part)))


LIKE = f"{RECIPES[0]}: compiled losses"
EAGER, RECIPE = (f"{RECIPES[0]}, {how}" for how in ("eager", "compiled"))


def memory(*values: float) -> list[Fault]:
    return [(GOAL, n, {"headspace": [v]}) for n, v in enumerate(values, 1)]


def losses(case: str, *values: float) -> Fault:
    return case, 1, {"losses": [*values]}


@pytest.mark.parametrize(
    ("part", "faults", "promise", "word"),
    [
        ("tests", [(TESTS, 1, {"passed": 0})], "The tests marked", NOT_MEASURED),
        ("tests", [(TESTS, 1, FAILS)], "The tests marked", BROKEN),
        ("goal", [(GOAL, 1, FAILS)], GOAL, BROKEN),
        ("goal", [(GOAL, 1, FAILS)], f"{COMPILED}, 8 cores", HELD),
        ("goal", [(GOAL, 1, FAILS)], f"{COMPILED}: steps", NOT_MEASURED),  # no comparison
        ("goal", [(COMPILED, 2, {"ended": CUT_OFF})], COMPILED, NOT_MEASURED),
        ("goal", [(COMPILED, 2, {"ended": SKIPPED})], COMPILED, NOT_MEASURED),
        ("goal", [(COMPILED, 2, {"headspace": []})], f"{COMPILED}: at", NOT_MEASURED),
        ("goal", memory(1.1, 1.11, 1.1), f"{GOAL}: at most 2 %", BROKEN),
        ("goal", memory(1.0, 1.06, 1.02), f"{GOAL}: at most 2 %", NOT_DECIDED),
        ("goal", memory(1.0, 1.04, 1.01), f"{GOAL}: at most 2 %", NOT_DECIDED),
        ("recipes", [(RECIPE, 1, {"data_wait_pct": [0.1]})], RECIPE, NOT_MEASURED),
        ("recipes", [losses(RECIPE, 3.91, 3.8, 3.7)], LIKE, HELD),
        ("recipes", [losses(RECIPE, 3.9, 3.8, 4.2)], LIKE, BROKEN),
        ("recipes", [losses(EAGER, 3.9, 5, 4), losses(RECIPE, 3.9, 6, 4)], LIKE, NOT_DECIDED),
        ("serving", [("serving", 1, {"times one client": 1.0})], "", BROKEN),
    ],
)
def test_a_fault_changes_the_verdict_on_what_it_concerns(
    part: str, faults: list[Fault], promise: str, word: str
) -> None:
    assert words(planted(part, *faults), promise) == {word}


def test_a_test_run_says_how_many_tests_passed(tmp_path: Path) -> None:
    said = "1 failed, 21 passed in 0.2s"
    assert _values(tmp_path, Case(TESTS, (), 60), said, ()) == {"passed": 21, "said": said}
    assert _values(tmp_path, Case(TESTS, (), 60), "no tests ran", ())["passed"] == 0


HANGS = "import subprocess; subprocess.run(['sleep', '1000'])"


def test_a_case_that_hangs_is_killed_and_one_that_does_not_fit_is_skipped(tmp_path: Path) -> None:
    plan, ends = replace(DRY, work=tmp_path), time.monotonic() + 60
    hangs, fits_not = Case("hangs", ("-c", HANGS), 0.5), Case("long", ("-c", HANGS), 100)
    killed, skipped = (run_case(plan, case, ends, tmp_path) for case in (hangs, fits_not))
    assert str(killed) == "cut off: killed at its deadline"
    assert skipped.ended == SKIPPED and "takes about 100 s, of 9.5 minutes" in skipped.why


MEETS = """
import json, os, pathlib, sys, time
place = pathlib.Path(sys.argv[1])
(place / sys.argv[2]).touch()
while not (place / sys.argv[3]).exists(): time.sleep(0.01)
print(json.dumps({"cores": len(os.sched_getaffinity(0))}))
"""


def test_cases_run_on_their_cores_and_untimed_ones_beside_each_other(tmp_path: Path) -> None:
    cases = [
        Case("one", ("-c", MEETS, str(tmp_path), "a", "b"), 60, cores=1, timed=False),
        Case("other", ("-c", MEETS, str(tmp_path), "b", "a"), 60, timed=False),
    ]
    result = run_part(replace(DRY, work=tmp_path / "work"), "tests", cases, tmp_path)
    cores = [one.values["cores"] for one in result.outcomes]
    assert cores == [1, len(os.sched_getaffinity(0))]


def test_a_page_is_of_one_code_and_a_part_of_it_replaces_no_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    results = planted("goal") | planted("recipes") | planted("peers")
    assert write_page({"recipes": results["recipes"]}, tmp_path) == 0
    assert write_page(results, tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-h100.md", "gpu-h100-recipes.md"}
    text = (tmp_path / "gpu-h100.md").read_text()
    assert f"| {GOAL} | 2800 |" in text and "files abc, which this clone no longer has" in text
    assert write_page(results | planted("goal", (GOAL, 3, FAILS)), tmp_path) == 1
    results["peers"].files = "other"
    with pytest.raises(UserError, match="the parts recipes and peers differ: files abc and other"):
        write_page(results, tmp_path)


def test_the_plan_alternates_three_times_and_what_needs_no_extra_fits_into_ten_minutes() -> None:
    goal = [(case.name, case.round, case.cores) for case in PARTS["goal"](FULL)]
    assert goal == [one for n in (1, 2, 3) for one in ((GOAL, n, 4), (COMPILED, n, 8))]
    seconds = 40.0  # the data set
    for part in WITHOUT_A_NAME:
        extras = ("dali-gpu", "dali-cpu", "torchcodec")  # they fail at once where not installed
        each = [case.estimate for case in PARTS[part](FULL) if not case.name.endswith(extras)]
        seconds += max(each) if part == "tests" else sum(each)
    assert seconds < 600, seconds
    assert sum(case.estimate for case in PARTS["options"](FULL)) < 60 * MINUTES


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
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError) as error:
        main(arguments)
    assert str(error.value).startswith(said)


def test_a_kit_becomes_an_environment_once(tmp_path: Path) -> None:
    (site := tmp_path / "packed" / "site").mkdir(parents=True)
    (site / "sample_of_ours.py").write_text("answer = 42\n")
    kit = tmp_path / "carried" / "kit"
    shutil.make_archive(str(kit), "xztar", tmp_path / "packed")
    environment = offline_kit.unpack(kit.parent, tmp_path / "kit")
    program = "import sample_of_ours, benchmarks.gpu.offline_kit; print(sample_of_ours.answer)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "42\n"
    (kept := tmp_path / "kit" / "site" / "kept").touch()
    offline_kit.unpack(kit.parent, tmp_path / "kit")
    assert kept.exists()
    with pytest.raises(SystemExit, match="holds no kit"):
        offline_kit.main(["run", str(tmp_path)])


def test_the_kit_carries_what_jobs_and_tests_import_but_not_what_the_machine_has() -> None:
    pins = offline_kit.carried("3.12")
    assert {"hydra-core", "pillow", "pytest", "spdl-core"} <= {*pins}
    assert not {*offline_kit.INSTALLED} & {*pins}
