"""The check of the GPU paths, as far as it runs without a GPU."""

import math
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from packaging.requirements import Requirement

from benchmarks.gpu import offline_kit
from benchmarks.gpu.gpu_check import main as gpu_check
from benchmarks.gpu.gpu_data import folders
from benchmarks.gpu.gpu_machine import Origin
from benchmarks.gpu.gpu_page import write_page
from benchmarks.gpu.gpu_plan import HEADSPACE, MODELS, PARTS, PEERS, Case, Plan, goal, peers
from benchmarks.gpu.gpu_runs import Outcome, Result, read_results, run_case, run_part
from benchmarks.gpu.gpu_serving import batches_so_far
from benchmarks.gpu.gpu_verdicts import GOAL
from benchmarks.gpu.offline_kit import INSTALLED, PACKED_FROM, carried, source_state, unpack
from entry_point.serving.serving_metrics import ServingMetrics
from tests.photographs import PHOTOGRAPHS

TORCHVISION = next(name for name in PEERS if "torchvision" in name)
KEYS = ("images_per_s", "data_wait_pct", "headspace", "step_ms_p50", "step_ms_p99", "cores")
"""What the verdicts and the page read of a job."""


def test_real_jobs_measure_what_the_verdicts_and_the_page_read(tmp_path: Path) -> None:
    plan = Plan("cpu", tmp_path / "work", minutes=60)
    ours = plan.training(GOAL, MODELS[0], HEADSPACE)
    peer = plan.training(f"{TORCHVISION}, {MODELS[0]}", MODELS[0], peer="torchvision")
    slow = [replace(case, estimate=200) for case in (plan.prepare(64), ours, peer)]
    result = run_part(plan, "goal", slow, tmp_path / "out")
    _, own, others = result.outcomes
    assert [one.code for one in result.outcomes] == [0, 0, 0], result.outcomes
    assert all(own.values[key] > 0 for key in KEYS if key != "data_wait_pct")
    assert others.values["images_per_s"] > 0 and others.values["cores"] > 0
    assert f"=== {GOAL}, round 1\n" in (tmp_path / "out" / "goal.log").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"goal.json", "goal.log"}
    assert read_results(tmp_path / "out", ["goal", "tests"]) == {"goal": result}
    shards = folders(plan.work, plan.size.images).done.stat().st_mtime_ns
    run_part(
        plan, "peers", [replace(plan.prepare(64), estimate=200)], tmp_path / "out"
    )  # the next part, elsewhere
    assert folders(plan.work, plan.size.images).done.stat().st_mtime_ns == shards


def test_a_job_runs_on_the_cores_that_its_case_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = tmp_path / "allowed_cores.py"
    program.write_text("import json, os; print(json.dumps({'n': len(os.sched_getaffinity(0))}))")
    before = os.sched_getaffinity(0)
    plan = Plan("cpu", tmp_path / "work", minutes=9)
    arguments = ("allowed_cores",)
    for cores, expected in ((1, 1), (None, len(before))):
        case = Case("cores", arguments, 30, cores=cores)
        assert run_case(plan, case, tmp_path / "log").values == {"n": expected}
    assert os.sched_getaffinity(0) == before


def test_cores_are_measured_also_of_epochs_that_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "short_epochs.py").write_text(
        "import os, pathlib, time\n"
        "log = pathlib.Path(os.environ['ML_ROOT']) / 'output' / 'data' / 'metrics.jsonl'\n"
        "log.parent.mkdir(parents=True)\n"
        "sum(range(10**7))\n"
        """log.write_text('{"images_per_s": 9}\\n' * 2)\n"""
        "time.sleep(2)\n"
    )
    case = Case("short", ("short_epochs",), 30)
    outcome = run_case(Plan("cpu", tmp_path / "work", minutes=9), case, tmp_path / "log")
    assert outcome.values["cores"] > 0 and outcome.values["images_per_s"] == 9


def results(**rates: float) -> dict[str, Result]:
    """The goal and its peers, as a GPU would measure them."""
    origin = Origin("abc123", False, "f00", "NVIDIA H100", "2.11.0", "cuda", "2026-11-23")
    found = {}
    for part, cases in (("goal", goal), ("peers", peers)):
        found[part] = Result(part, origin, {"driver": "580"}, {"DALI": "DALI is | not installed"})
        for case in cases(Plan("cuda", Path(), 9.5)):
            rate = next((rates[key] for key in rates if key in case.name), 2500.0)
            values = {"images_per_s": rate, "data_wait_pct": 0.25, "headspace": 1.01, "cores": 2.0}
            values |= {"step_ms_p50": 90.0, "step_ms_p99": 95.0, "data_wait_ms_p99": 0.5}
            outcome = Outcome(case.name, case.round, "ended", case.estimate, 44, 0, values=values)
            if case.name.startswith("DALI"):
                outcome = Outcome(case.name, 1, "skipped", 60, why="DALI is | not installed")
            outcome.clocks = [{"MHz": 1980.0, "C": 40.0}, {"MHz": 1900.0, "C": 61.0}]
            found[part].outcomes.append(outcome)
    return found


def test_the_page_has_the_figures_a_verdict_per_promise_and_says_what_did_not_run(
    tmp_path: Path,
) -> None:
    path, verdicts = write_page(results(torchvision=500.0), tmp_path)
    text = path.read_text()
    assert "dry run" not in text and "commit abc123, files f00; NVIDIA H100" in text
    for line in (
        "| ResNet-50 | this template | 2500 | 0.25 | 2 | 2.02 |",
        f"| ResNet-50 | {TORCHVISION} | 500 | 0.25 | 2 | 10.1 |",  # scaled to 2525 images/s
        "| ResNet-50 | DALI, GPU decoder, ResNet-50, round 1: skipped: ",
        "less than 1 % of the time | **held** | 0.25 ± 0; at most 1 |",
        "| The tests marked `gpu` pass | **not measured** | ",
        "| goal | this template, ResNet-50, 3 | exit code 0 | 44 (41) | ",
        "1980/40, 1900/61 |",
        "| lacks DALI | DALI is / not installed |",
    ):
        assert line in text, text
    assert sum(one.word == "held" for one in verdicts) == 6


def test_the_picture_shows_the_contenders_for_light_and_dark_pages(tmp_path: Path) -> None:
    write_page(results(torchvision=500.0), tmp_path)
    for theme in ("light", "dark"):
        tree = ElementTree.parse(tmp_path / "plots" / f"gpu-h100-{theme}.svg")
        texts = ["".join(e.itertext()) for e in tree.iter() if e.tag.endswith("}text")]
        assert texts.count("2500") == 2 and texts.count("input from memory") == 2
        assert texts.count("not measured") == 4 and texts.count("10.1") == 2
        assert f"plots/gpu-h100-{theme}.svg" in (tmp_path / "gpu-h100.md").read_text()


def test_parts_that_have_not_run_give_a_page_without_figures(tmp_path: Path) -> None:
    both = results()
    both["goal"].outcomes.clear()
    del both["peers"]
    path, verdicts = write_page(both, tmp_path)
    assert {one.word for one in verdicts} == {"not measured"}
    assert "nan" not in path.read_text() + (tmp_path / "plots" / "gpu-h100-dark.svg").read_text()


def test_the_documents_give_the_estimate_of_each_part() -> None:
    text = (offline_kit.ROOT / "docs" / "index.md").read_text()
    plan = Plan("cuda", Path("nowhere"), minutes=9.5)
    for part, cases in PARTS.items():
        minutes = math.ceil(sum(case.estimate for case in cases(plan)) / 60)
        assert f"| `{part}` | {minutes} |" in text


def test_the_servers_metrics_tell_images_and_batches() -> None:
    metrics = ServingMetrics(lambda: 0)
    for images in (1, 8, 3):
        metrics.batch(images)
    assert batches_so_far(metrics.page().decode()) == (12, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "gpu-check: torch finds no CUDA device; device=cpu makes a dry run\n"),
        (
            ["part=gaol"],
            "gpu-check: part=gaol: must be one of tests, goal, peers, options, serving, page; "
            "did you mean goal?\n",
        ),
        (["device=gpu"], "gpu-check: device=gpu: must be one of cuda, cpu; did you mean cpu?\n"),
        (["minutes=0"], "gpu-check: minutes=0: must be above 0\n"),
        (
            ["prt=1"],
            "gpu-check: prt=1: no such key; did you mean part?\n",
        ),
    ],
)
def test_what_cannot_run_is_one_line(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check(arguments) == 2
    assert capsys.readouterr().err == said


def test_a_folder_of_wheels_becomes_an_environment(tmp_path: Path) -> None:
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
    assert environment["PHOTOGRAPHS"] == str(folder / "photographs")
    program = "import sample_of_ours, benchmarks.gpu.gpu_plan; print(sample_of_ours.answer)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "42\n"
    kept = tmp_path / "kit" / "site" / "kept"
    kept.touch()
    unpack(folder, tmp_path / "kit")
    assert kept.exists()  # each part of the check unpacks, but the first alone installs
    (folder / "headers.deb").touch()
    with pytest.raises(SystemExit, match="failed: dpkg"):
        unpack(folder, tmp_path / "kit")
    assert not kept.exists()


def test_a_package_that_is_not_carried_cannot_stay_at_home(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"polar: not among .*polars"):
        offline_kit.main(["pack", str(tmp_path / "kit"), "3.12", "polar"])
    assert not (tmp_path / "kit").exists()


def test_the_check_runs_with_torch_and_the_carried_packages_alone(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv.create(tmp_path / "env")
    site = tmp_path / "env" / "lib" / f"python{version}" / "site-packages"
    for package in _with_needs({*INSTALLED, *carried(version)}):
        for file in metadata.files(package) or ():
            top = site / file.parts[0]
            if file.parts[0] != ".." and not top.is_symlink():
                top.symlink_to(Path(str(metadata.distribution(package).locate_file(top.name))))
    for photograph in PHOTOGRAPHS.values():
        shutil.copy(photograph, tmp_path)
    python, out = str(tmp_path / "env" / "bin" / "python"), [f"out={tmp_path}", f"work={tmp_path}"]
    done = subprocess.run(
        [python, "-m", "benchmarks.gpu.gpu_check", "part=tests", "device=cpu", *out],
        env={**os.environ, "PHOTOGRAPHS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert re.search("The tests marked `gpu` pass: 0 passed, [1-9][0-9]* skipped", done.stdout), (
        done
    )
    assert done.returncode == 0


def _with_needs(packages: set[str]) -> set[str]:
    """The packages, and what they need on this machine."""
    found: set[str] = set()
    waiting = set(packages)
    while waiting:
        name = waiting.pop()
        with suppress(metadata.PackageNotFoundError):  # on another platform, or an extra
            needs = [Requirement(text) for text in metadata.requires(name) or ()]
            found.add(name)
            wanted = {need.name for need in needs if need.marker is None or need.marker.evaluate()}
            waiting |= wanted - found
    return found


def test_a_folder_without_wheels_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no wheel"):
        offline_kit.main(["run", str(tmp_path), "device=cpu"])


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
    assert source_state()[:2] == ("unknown", None) and source_state()[2] != files
