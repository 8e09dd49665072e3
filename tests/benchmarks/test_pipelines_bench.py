"""The benchmark of the pipelines: its cases, its advice and its pages."""

import json
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.pipelines import bench
from benchmarks.pipelines.bench import cases, read_config, write_formats
from benchmarks.pipelines.compare import Compared
from benchmarks.pipelines.images import Images, prepare
from benchmarks.pipelines.page import Page, write_pictures
from benchmarks.pipelines.peers import PEERS
from benchmarks.pipelines.run_case import Case, Result, endless_loader
from benchmarks.pipelines.table import ON_FILES, ON_INDEXED, Measurement, advice
from entry_point.config.config_errors import ConfigError
from tests import forkserver


@pytest.fixture(scope="module")
def images(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """20 photographs, as they are read."""
    return prepare(photo_folder, 20, tmp_path_factory.mktemp("images"))


def _measured(way: str, workers: int, rate: float, cpu_ms: float = 1.0) -> Measurement:
    return Measurement(
        way, workers, Result([2 * rate, rate, rate], [0.5, 0.7, cpu_ms], 400.0, 300.0)
    )


def test_the_advice_is_the_engine_with_least_cpu_time_among_equally_fast_ones() -> None:
    measured = [
        _measured("pillow", 2, 300, 3.0),
        _measured("threads", 1, 1160, 0.8),
        _measured("threads", 2, 1200, 0.9),
        _measured("spdl.io", 2, 5000, 0.1),
        _measured("litdata", 2, 600, 3.0),
        _measured(ON_FILES, 2, 1000, 0.9),
        _measured(ON_INDEXED, 2, 1100, 0.8),
    ]
    text = advice(measured)
    assert "`data=shards data.root=... pipeline=threads pipeline.num_workers=1`: 1160" in text
    assert "3.9 times the best of `pillow`" in text
    assert "The fastest of the others is SPDL: 5000 images/s, more than any engine" in text
    assert "1.20 times as fast as on plain files (1000 images/s)" in text
    assert "files were 1.10 times as fast where they lie" in text


def test_the_pages_contain_the_plot_and_all_measurements(tmp_path: Path) -> None:
    measured = [_measured("pillow", 1, 123), _measured("threads", 2, 456)]
    compared = {"turboloader": Compared(1, 128, torch.tensor([2.0, 4.0]), 9.0)}
    phones = [_measured("threads", 2, 78)]
    results = Page("photographs", 32, 224, 1, measured, phones, compared)
    assert "](plots/pipelines.png)" in results.write(tmp_path / "pipelines", tmp_path / "plots")
    results.write(tmp_path / "out" / "pipelines", tmp_path / "out")
    text = (tmp_path / "out" / "pipelines.md").read_text()
    assert "](pipelines.png)" in text and (tmp_path / "out" / "pipelines.png").exists()
    assert "| 123 |" in text and "num_workers=2" in text
    assert "| threads | 2 | 912 | 456 | 456 |" in text and "| threads | 2 | 156 | 78 | 78 |" in text
    assert "medians of 1 alternating round, " in text
    assert "| turboloader | 127 of 128 | 3.00 | 4.00 | 9 | NO |" in text


def test_the_pictures_are_small_svg_files_with_every_figure_as_text(tmp_path: Path) -> None:
    measured = [_measured("pillow", 1, 123, 6.5), _measured("threads", 2, 456)]
    write_pictures(measured, [_measured("threads", 2, 78)], tmp_path)
    for theme in ("light", "dark"):
        file = tmp_path / f"pipelines-{theme}.svg"
        texts = {"".join(e.itertext()) for e in ElementTree.parse(file).iter() if "text" in e.tag}
        assert {
            "this template (threads)",
            "Pillow + DataLoader",
            "456",
            "123",
            "6.5",
            "78",
        } <= texts
        assert file.stat().st_size < 30_000


def test_a_folder_is_read_packed_and_as_files_each_with_and_without_side_indexes(
    images: Images,
) -> None:
    assert images.count == 20 and images.files is not None
    assert len({file.parent.name for file in images.files.rglob("*.jpg")}) == 8
    config = read_config(["ways=[threads,pillow]", "workers=[1,2]", "batch_size=4"])
    todo = cases(config, images)
    assert [(case.way, case.workers, case.format, case.shown) for case in todo] == [
        ("threads", 1, "shards", ""),
        ("threads", 2, "shards", ""),
        ("pillow", 1, "shards", ""),
        ("pillow", 2, "shards", ""),
        ("threads", 1, "folder", ON_INDEXED),
        ("threads", 2, "folder", ON_INDEXED),
        ("threads", 1, "folder", ON_FILES),
        ("threads", 2, "folder", ON_FILES),
    ]
    work = images.shards.parent
    indexes = {folder.name for folder in work.iterdir() if list(folder.rglob("*index.s*"))}
    assert indexes == {"shards", "indexed"}


@pytest.mark.parametrize(
    ("given", "engines", "others"),
    [
        ("workers=null", [1, 6], [6]),
        ("workers=[2]", [2], [2]),
        ("publish=true", [1, 2, 4, 6], [1, 2, 4, 6]),
    ],
)
def test_what_engines_are_compared_with_is_measured_on_all_cores_unless_more_is_asked_for(
    given: str,
    engines: list[int],
    others: list[int],
    images: Images,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "usable_cores", lambda: 6)
    config = read_config(["ways=[threads,dali,imagefolder,turboloader]", "batch_size=4", given])
    counts = defaultdict(list)
    for case in cases(config, images):
        counts[case.shown or case.way].append(case.workers)
    assert counts.pop("threads") == counts.pop("dali") == engines
    assert counts.pop("turboloader") == [6]  # its threads are as many as the cores
    assert counts == dict.fromkeys(("imagefolder", ON_INDEXED, ON_FILES), others)


def test_a_folder_is_measured_as_in_its_first_epoch(photo_folder: Path) -> None:
    """Without the side indexes that decoding makes: with them, the second round is another way."""
    loader = endless_loader(Case("threads", 1, str(photo_folder), "folder", 32, 4, 0.05), False)
    try:
        assert loader._maker.source.index_store is None
    finally:
        loader.close()


@pytest.mark.parametrize("way", ["threads", "imagefolder", "torchcodec"])
def test_a_case_is_measured_in_each_stage(way: str, photo_folder: Path, tmp_path: Path) -> None:
    case = json.dumps(asdict(Case(way, 1, str(photo_folder), "folder", 32, 4, 0.05)))
    arguments = ["-m", "benchmarks.pipelines.run_case", case]
    program = forkserver.start(arguments, tmp_path / "out", errors=tmp_path / "errors")
    output, errors = program.communicate(timeout=240)
    assert program.returncode == 0, errors
    result = Result(**json.loads(output))
    assert len(result.images_per_second) == len(result.cpu_ms_per_image) >= 3
    assert min(result.images_per_second) > 0 and result.megabytes > 10


def test_nothing_is_published_without_a_loader_that_was_to_be_measured(
    photo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    # The command changes both for its process.
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    monkeypatch.setattr(bench, "PATIENCE_S", 0.01)  # of a run
    result = Result([1.0] * 4, [1.0] * 4, 2.0, 1.0)
    run = bench._run
    monkeypatch.setattr(bench, "_run", lambda c: run(c) if c.way == "pillow" else result)
    few = ["ways=[threads,pillow]", "workers=[1]", "batch_size=4", "images=20", "rounds=1"]
    out = f"output={tmp_path / 'out' / 'pipelines'}"
    assert bench.main([f"data.root={photo_folder}", *few, out, "publish=true"]) == 2
    _, errors = capsys.readouterr()
    assert errors.endswith(
        "pillow with 1: took over 0 s\nbench: not published, as the case above failed\n"
    )
    assert not (tmp_path / "results").exists()


def _run_cases_by(python: Path) -> None:
    sys.executable = str(python)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured_and_no_signal_leaves_copies_of_images(
    number: signal.Signals, photo_folder: Path, tmp_path: Path
) -> None:
    result = json.dumps(asdict(Result([1.0] * 3, [1.0] * 3, 2.0, 1.0)))
    python = tmp_path / "python"  # its first case ends at once, the second does not
    python.write_text(f"#!/bin/sh\nmkdir {tmp_path}/ran && echo '{result}' || exec sleep 60\n")
    python.chmod(0o755)
    settings = ["ways=[pillow]", "workers=[1]", "batch_size=4", "images=20", "rounds=99"]
    settings += [f"data.root={photo_folder}", f"output={tmp_path}/out/pipelines"]
    (work := tmp_path / "work").mkdir()
    errors = tmp_path / "errors"
    job = forkserver.start(
        ["-m", "benchmarks.pipelines.bench", *settings],
        tmp_path / "log",
        errors=errors,
        environment={"TMPDIR": str(work)},
        prepare=partial(_run_cases_by, python),
    )
    while not re.search(r"^1 of 99 runs, \d+ .+ left$", errors.read_text(), re.MULTILINE):
        assert job.poll() is None, errors.read_text()
        time.sleep(0.01)
    job.send_signal(number)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 128 + number
    work.rmdir()  # empty
    kept = number == signal.SIGINT
    assert ("stopped by Ctrl-C, 98 runs missing" in output and "pillow" in output) is kept
    assert (tmp_path / "out" / "pipelines.md").exists() is kept


def test_all_loaders_are_published_or_the_missing_ones_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "installed", lambda module: module != "litdata")
    with pytest.raises(ConfigError, match=r"publish=true: needs litdata: run `make setup EXTRAS="):
        read_config(["publish=true"])


def test_help_lists_each_setting_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = "Settings, with their defaults; benchmarks/pipelines/bench.py explains them:"
    listed = lines[lines.index(heading) + 1 :]
    assert any(line.startswith("  rounds=2 ") for line in listed)
    assert all(len(line.split(maxsplit=1)) == 2 for line in listed), listed


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (["secnds=2"], "secnds"),
        (["rounds=0"], "rounds=0"),
        (["ways=[pillow,thread]"], r"ways=thread: must be one of pillow, .*threads"),
        (["workers=[1,0]"], r"workers\[1\]=0: Input should be greater than or equal to 1"),
        (["batch_size=64"], r"batch_size=64: .*number of training images, 20"),
        (["ways=[dali]", "augment.name=trivial"], "ways=dali: cannot take augment.name=trivial"),
    ],
)
def test_invalid_setting_is_named_before_anything_runs(
    settings: list[str], error: str, images: Images
) -> None:
    with pytest.raises(ConfigError, match=error):
        cases(read_config(settings), images)


def test_a_policy_is_measured_with_the_engines_that_take_it(images: Images) -> None:
    config = read_config(["images=20", "batch_size=4", "augment.name=trivial", "workers=[1]"])
    todo = cases(config, images)
    assert {case.way for case in todo} == {"pillow", "workers", "threads"}
    assert all('"name": "trivial"' in case.augment for case in todo)


def test_other_loaders_read_plain_files_or_what_is_written_from_them(
    images: Images, tmp_path: Path
) -> None:
    ways = "ways=[dali,dali.fn,webdataset]"
    config = read_config([ways, "workers=[2]", "batch_size=4", "images=20"])
    todo = cases(config, images)
    found = [(case.way, case.format, case.root) for case in todo]
    files, shards = str(images.files), str(images.shards)
    tars = str(images.shards.with_name("webdataset"))
    assert found == [
        ("dali", "shards", shards),
        ("dali.fn", "folder", files),
        ("webdataset", "folder", tars),
    ]
    assert images.files is not None
    write_formats(todo, images.files)
    assert [file.name for file in Path(tars).iterdir()] == ["000000.tar"]
    packed = prepare(images.shards, 20, tmp_path)
    with pytest.raises(ConfigError, match=r"^ways=.*dali\.fn.*: the data is packed"):
        cases(config, packed)
    every = read_config(["batch_size=4", "images=20"])
    measured = {case.way for case in cases(every, packed)}
    assert not measured & {"dali.fn", *PEERS}
