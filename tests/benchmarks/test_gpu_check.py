"""The check of the GPU paths, as far as it runs without a GPU."""

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import gpu_page, offline_kit
from benchmarks.gpu.gpu_check import DRY, FULL, PARTS, Case, main, make_data, run_case, run_part
from benchmarks.gpu.gpu_page import (
    BROKEN,
    COMPILED,
    CUT_OFF,
    GOAL,
    HELD,
    NOT_DECIDED,
    NOT_MEASURED,
    RECIPES,
    ROUNDS,
    SKIPPED,
    TESTS,
    Outcome,
    Verdict,
    at_most,
    judge,
    source_hash,
    write_page,
)

Change = Callable[[Outcome], object]


def planted(part: str, change: Change = lambda _: None) -> dict[str, Any]:
    """Results of a part whose jobs keep every promise, each outcome changed by `change`."""
    outcomes = []
    for case in PARTS[part](FULL):
        outcome = Outcome(case.name, case.round, case.estimate, code=0, seconds=20.0)
        step = 60.0 if case.name == COMPILED else 91.0
        outcome.values = {
            "images_per_s": [2800.0] * ROUNDS,
            "data_wait_pct": [0.3, 0.4, 0.2],
            "step_ms_p50": [step + 0.01 * case.round],
            "step_ms_p99": [step + 5],
            "headspace": [1.003],
            "losses": [3.9, 3.8, 3.7],
            "cores": [3.2],
            "images per batch": 4.0,
            "speed": "fast",
            "passed": 21,
            "said": "21 passed",
        }
        change(outcome)
        outcomes.append(asdict(outcome))
    origin = {"files": "abc", "machine": "NVIDIA H100, a CPU", "device": "cuda"}
    made = {"date": "2026-11-27", "system": "torch"}
    return {part: {"part": part, **origin, **made, "outcomes": outcomes}}


def only(name: str, round: int, **changes: Any) -> Change:
    """Changes one round of a case."""
    return lambda one: (one.case, one.round) == (name, round) and vars(one).update(changes)


def verdicts(results: dict[str, Any], promise: str = "") -> list[Verdict]:
    return [verdict for verdict in judge(results) if verdict.promise.startswith(promise)]


def words(results: dict[str, Any], promise: str = "") -> set[str]:
    return {verdict.word for verdict in verdicts(results, promise)}


def test_real_jobs_measure_what_the_verdicts_and_the_page_read(tmp_path: Path) -> None:
    plan, out = replace(DRY, work=tmp_path / "work"), tmp_path / "out"
    make_data(plan)
    cases = [PARTS["goal"](plan)[0], PARTS["peers"](plan)[-1], *PARTS["serving"](plan)]
    patient = [replace(case, estimate=150) for case in cases]
    own, peer, server = run_part(plan, "goal", patient, out)["outcomes"]
    assert (own["code"], peer["code"], server["code"]) == (0, 0, 0), (own, peer, server)
    assert len(own["values"]["step_ms_p50"]) == 2 and len(own["values"]["losses"]) == 1
    assert own["values"]["headspace"][0] > 0
    cores = own["values"].get("cores")  # none if all lines of this small job were read at once
    assert cores is None or cores[0] > 0
    assert peer["values"]["images_per_s"][0] > 0
    assert server["values"]["images per batch"] >= 1
    assert main(["page", f"out={out}"]) in (0, 1)  # a dry run's figures may break promises
    text = (out / "gpu.md").read_text()
    assert "A dry run" in text and f"files {source_hash()}" in text
    assert "no longer has" not in text


@pytest.mark.parametrize("part", PARTS)
def test_without_a_fault_every_promise_is_held(part: str) -> None:
    assert words(planted(part)) <= {HELD}
    assert (part == "peers") != bool(words(planted(part)))  # other loaders promise nothing


def test_a_process_that_fails_breaks_the_promises_of_its_case_only() -> None:
    failed = planted("goal", only(GOAL, 1, code=1, why="CUDA error: misaligned address"))
    (verdict,) = verdicts(failed, f"{GOAL}, 4 cores")
    assert verdict.word == BROKEN
    assert verdict.reason == f"{GOAL}, round 1: exit code 1: CUDA error: misaligned address"
    assert words(failed, f"{COMPILED}, 8 cores") == {HELD}
    assert words(failed, f"{COMPILED}: steps") == {NOT_MEASURED}  # nothing to compare with


@pytest.mark.parametrize(
    "changes",
    [{"ended": CUT_OFF, "code": None}, {"ended": SKIPPED, "code": None}, {"values": {}}],
    ids=["cut off", "skipped", "no figures"],
)
def test_a_missing_round_leaves_its_case_unmeasured(changes: dict[str, Any]) -> None:
    results = planted("goal", only(COMPILED, 2, **changes))
    assert words(results, COMPILED) == {NOT_MEASURED} and words(results, GOAL) == {HELD}


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
    ("eager", "compiled", "word"),
    [
        ([3.9, 3.8], [3.91, 3.8], HELD),
        ([3.9, 3.8], [3.9, 4.2], BROKEN),
        ([3.9, 5.0], [3.9, 4.2], NOT_DECIDED),
    ],
    ids=["alike", "learns otherwise", "unstable"],
)
def test_a_recipe_must_learn_compiled_as_it_does_eagerly(
    eager: list[float], compiled: list[float], word: str
) -> None:
    def change(one: Outcome) -> None:
        one.values["losses"] = compiled if one.case.endswith("compiled") else eager

    assert words(planted("recipes", change), f"{RECIPES[0]}: compiled losses") == {word}


PASSES, FAILS = "def test_one(): pass\n", "def test_two(): assert False\n"


@pytest.mark.parametrize(
    ("text", "word", "reason"),
    [
        (PASSES, HELD, "1 passed"),
        (PASSES + FAILS, BROKEN, "1 failed, 1 passed"),
        ("import os\ndef test_one(): os._exit(0)\n", NOT_MEASURED, ""),
    ],
    ids=["pass", "fail", "exit"],
)
def test_the_verdict_on_a_test_run(
    text: str, word: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take long to import
    file = tmp_path / "test_planted.py"
    file.write_text(text)
    options = ("-q", f"--rootdir={tmp_path}", "-c", "/dev/null")
    case = Case(TESTS, ("-m", "pytest", *options, str(file)), 60, timed=False)
    result = run_part(replace(DRY, work=tmp_path / "work"), "tests", [case], tmp_path / "out")
    found = judge({"tests": result})[0]
    assert found.word == word and reason in found.reason, found


HANGS = "import subprocess; subprocess.run(['sleep', '1000'])"


def test_a_case_that_hangs_is_killed_and_one_that_does_not_fit_is_skipped(tmp_path: Path) -> None:
    plan, ends = replace(DRY, work=tmp_path), time.monotonic() + 60
    hangs, fits_not = Case("hangs", ("-c", HANGS), 0.5), Case("long", ("-c", HANGS), 100)
    killed, skipped = (run_case(plan, case, ends, tmp_path) for case in (hangs, fits_not))
    assert (killed.ended, killed.code) == (CUT_OFF, None) and killed.end.startswith("cut off: kill")
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
    cores = [one["values"]["cores"] for one in result["outcomes"]]
    assert cores == [1, len(os.sched_getaffinity(0))]


def test_a_page_is_of_one_code_and_a_part_of_it_replaces_no_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    results = planted("goal") | planted("recipes") | planted("peers")
    assert write_page({"recipes": results["recipes"]}, tmp_path) == 0
    assert write_page(results, tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-h100.md", "gpu-h100-recipes.md"}
    assert f"| {GOAL} | 2800 |" in (tmp_path / "gpu-h100.md").read_text()
    assert write_page(results | planted("goal", only(GOAL, 3, code=1)), tmp_path) == 1
    results["peers"]["files"] = "other"
    with pytest.raises(ValueError, match="the parts recipes and peers differ: files abc and other"):
        write_page(results, tmp_path)


def test_the_commit_is_that_of_a_clone_with_the_measured_files(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    source = tmp_path / "tests" / "one.py"
    source.write_text("")
    files = source_hash(tmp_path)
    assert gpu_page.commit_of(files, tmp_path) == f"files {files}"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    assert gpu_page.commit_of(files, tmp_path).startswith("commit ")
    source.write_text("changed = True\n")
    assert ", with changes, " in gpu_page.commit_of(source_hash(tmp_path), tmp_path)
    assert "no longer has" in gpu_page.commit_of(files, tmp_path)


def test_eager_and_compiled_alternate_three_times_on_their_cores() -> None:
    cases = [(case.name, case.round, case.cores) for case in PARTS["goal"](FULL)]
    assert cases == [one for n in (1, 2, 3) for one in ((GOAL, n, 4), (COMPILED, n, 8))]


def test_all_but_dali_fits_into_ten_minutes_on_the_card() -> None:
    seconds = 40.0  # the data set
    for part, cases in PARTS.items():
        each = [case.estimate for case in cases(FULL) if "dali" not in case.name]
        seconds += max(each) if part == "tests" else sum(each)
    assert seconds < 600, seconds


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
    environment = offline_kit.unpack(folder, tmp_path / "kit")
    program = "import sample_of_ours, benchmarks.gpu.peer_jobs; print(sample_of_ours.answer)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "42\n"
    kept = tmp_path / "kit" / "site" / "kept"
    kept.touch()
    offline_kit.unpack(folder, tmp_path / "kit")
    assert kept.exists()
    with pytest.raises(SystemExit, match="holds no wheel"):
        offline_kit.main(["run", str(tmp_path)])


def test_the_kit_carries_what_jobs_and_tests_import_but_not_what_the_machine_has() -> None:
    pins = offline_kit.carried("3.12")
    assert {"hydra-core", "pillow", "pytest", "spdl-core"} <= {*pins}
    assert not {*offline_kit.INSTALLED} & {*pins}
