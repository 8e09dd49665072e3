"""The plot and the report of a finished run."""

import json
import multiprocessing
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from entry_point.config.train_config import load_train_config
from entry_point.data.loader import open_source
from entry_point.job.devices import join_devices
from entry_point.job.known_tasks import TASKS
from entry_point.training.results.pictures import TRAINING, draw, first_samples
from entry_point.training.results.report import IN_THIS_THREAD
from entry_point.training.tasks.build_task import build_task
from tests.chromium import browser
from tests.entry_point.training import forked
from tests.entry_point.training.results.conftest import OVERRIDES
from tests.entry_point.training.training_jobs import read_records


def test_the_plot_shows_every_loss_and_labels_the_training_loss() -> None:
    train = [
        {"step": step, "loss": 2 / step, "images_per_s": 9.0, "data_wait_pct": 0.0}
        for step in (10, 20)
    ]
    measured = {"step": 10, "val_loss": 15.0, "val_accuracy": 0.1}
    (accuracy, *_), (error, *_) = TASKS["classification"].metrics, TASKS["regression"].metrics
    figure = draw([*train, measured], "a", accuracy)
    low, high = figure.axes[0].get_ylim()
    assert low < 0.1 and high > 15
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [TRAINING, "validation"]
    assert figure.axes[1].get_title(loc="left") == "validation accuracy (%)"
    assert np.asarray(figure.axes[1].lines[0].get_ydata()).tolist() == [10]
    shortest = [
        line for axes in draw([train[0], measured], "a", accuracy).axes for line in axes.lines
    ]
    assert len(shortest) == 5 and all(line.get_marker() == "o" for line in shortest)
    unmeasured = draw([*train, measured], "a", error)
    assert unmeasured.axes[1].get_title(loc="left") == "validation mean absolute error"


def test_a_report_reads_its_samples_without_the_processes_of_training(
    photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = load_train_config(
        ["data=folder", f"data.root={photo_folder}", "pipeline=workers", "trainer.device=cpu"]
    )
    in_this_thread = replace(config, pipeline=IN_THIS_THREAD)
    monkeypatch.setattr(multiprocessing.Process, "start", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    with join_devices(config.trainer) as devices:
        train = open_source(config.data, "train", Path())
        task = build_task(config, train, devices.device)
        assert len(first_samples(in_this_thread, train, task, devices).axes) == 24


class _Page(HTMLParser):
    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(page: Path) -> str:
    parsed = _Page()
    parsed.feed(page.read_text())
    return parsed.text


def test_the_report_is_one_self_contained_page(run: Path) -> None:
    page = _Page()
    page.feed((run / "output" / "data" / "report.html").read_text())
    assert page.open == []
    assert f"{run.name}: project.models.small_net" in page.text
    assert re.search(r"ended\d{4}-\d\d-\d\d \d\d:\d\d UTC", page.text)
    for fact in ("code revision", "processor", "training time"):
        assert fact in page.text
    assert page.sources
    assert all(source.startswith("data:image/") for source in page.sources)
    classes = json.loads((run / "model" / "classes.json").read_text())
    sections = ("Confusion matrix", "Worst predictions", "Training samples", "Speed", "verdict")
    for part in [*classes, *sections, "torchvision"]:
        assert part in page.text
    assert "image_size: 32" in page.text


def test_the_report_fits_the_window_of_a_phone(run: Path, tmp_path: Path) -> None:
    page = run / "output" / "data" / "report.html"
    with browser(page.as_uri(), tmp_path / "profile") as opened:
        size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        opened.call("Emulation.setDeviceMetricsOverride", **size)
        opened.wait_for("document.readyState === 'complete' && innerWidth === 400")
        assert opened.evaluate("document.documentElement.scrollWidth") <= 400
        # No figure is split over two lines.
        heights = "[...document.querySelectorAll('.numbers b')].map((each) => each.offsetHeight)"
        assert len(set(opened.evaluate(heights))) == 1


def test_a_finished_run_started_again_only_rewrites_its_results(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    again = tmp_path / run.name
    shutil.copytree(run, again)
    for name in ("log", "model/model.safetensors"):
        (again / name).unlink()
    assert forked.run(again, photo_folder, OVERRIDES) == 0
    before, after = (load_file(root / "model" / "model.safetensors") for root in (run, again))
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert read_records(again) == read_records(run)
    # The new process does not know single steps; everything else is reported as before.
    times = re.compile(r", earlier starts included|(step time \(ms\).*?)?verdict.*?Confusion", re.S)
    reported, rewritten = (text_of(root / "output/data/report.html") for root in (run, again))
    assert times.sub("", rewritten) == times.sub("", reported)
    log = (again / "log").read_text()
    assert "\nAlready finished; rewrote the results in " in log
    for row in ("training throughput", "waiting for data", "verdict"):
        (line,) = (line for line in log.splitlines() if line.startswith(f"  {row}"))
        assert " 0 images/s" not in line and "e+" not in line


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_continued_run_leaves_no_result_of_earlier_weights(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "log").unlink()
    (root / "model" / "code" / "project" / "earlier.py").touch()
    other_settings = [*OVERRIDES, "trainer.epochs=9", "trainer.report=false"]
    assert forked.run(root, photo_folder, other_settings) == 0
    assert "epochs: 9" in (root / "model" / "config.yaml").read_text()
    assert files(root / "model") == files(run / "model")
    written = files(root / "output" / "data")
    assert "metrics.jsonl" in written and not {"report.html", "summary.png"} & written
    log = (root / "log").read_text()
    assert "report.html" not in log and "summary.png" not in log


def test_results_of_earlier_weights_are_removed_before_new_weights_are_written(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "model" / "model.safetensors").unlink()
    (root / "model" / "model.safetensors").mkdir()  # the weights cannot be written
    assert forked.run(root, photo_folder, OVERRIDES) == 1
    assert not {"report.html", "summary.png"} & files(root / "output" / "data")
