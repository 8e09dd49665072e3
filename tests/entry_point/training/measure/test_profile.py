"""trainer.diagnose=profile: a trace of ten steps that other tools read, and tables."""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.spans import Span
from entry_point.training.measure.profiling import add_spans, range_table, within
from tests.entry_point.data.engines.every_engine import Way, pipeline_of
from tests.entry_point.training import forked

PIPELINE = {
    "workers": {"read", "plan", "decode_crop_resize_batch", "collate"},
    "threads": {"read", "decode_crop_resize_batch", "collate"},
}
STEP = {"data_wait", "copy", "prepare", "forward", "backward", "optimizer"}


@pytest.mark.parametrize("engine", PIPELINE)
def test_a_trace_shows_the_parts_of_the_step_and_of_the_pipeline(
    engine: Way, tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [
        f"pipeline={engine}",
        "pipeline.num_workers=1",
        "trainer.batch_size=2",
        "trainer.diagnose=profile",
    ]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    folder = tmp_path / "output" / "data" / "profile"
    (file,) = folder.glob("rank0.*.pt.trace.json.gz")
    trace = json.loads(gzip.decompress(file.read_bytes()))
    events = trace["traceEvents"]
    # Trace viewers need these fields.
    assert trace["schemaVersion"] == 1 and trace["baseTimeNanoseconds"] > 0
    for event in (e for e in events if e["ph"] == "X"):
        assert {"cat", "name", "pid", "tid", "ts", "dur"} <= event.keys()
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    assert len(steps) == 10
    first, last = (f(e["ts"] for e in steps) for f in (min, max))
    for name in STEP | PIPELINE[engine]:
        found = [e for e in events if e["name"] == name and e["ph"] == "X"]
        assert any(first <= e["ts"] <= last and e["dur"] >= 0 for e in found), name
    trainer = steps[0]["pid"]
    others = {e["pid"] for e in events if e["name"] == "read"} - {trainer}
    assert len(others) == (1 if engine == "workers" else 0)
    log, text = (tmp_path / "log").read_text(), (folder / "rank0.txt").read_text()
    for name in ("profile of 10 steps", *STEP, *PIPELINE[engine]):
        assert name in text and name in log
    assert "aten::" in text and str(file) in log
    assert re.search(rf"^  trace +{re.escape(str(file))}$", log, re.M)


def test_a_profile_of_a_short_epoch_shows_how_its_batches_were_made(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Without noise in the log. All batches of this epoch are read before its second step."""
    overrides = ["pipeline=workers", "pipeline.num_workers=1", "trainer.diagnose=profile"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    log, folder = (tmp_path / "log").read_text(), tmp_path / "output" / "data" / "profile"
    rows = {
        line.split()[0]: line for line in (folder / "rank0.txt").read_text().splitlines() if line
    }
    assert log.count("profile of 2 steps") == 1
    for name in PIPELINE["workers"]:
        assert name in rows and name in log
    assert rows["read"].split()[1] == "1.0"  # each batch's read, whenever it happened
    (file,) = folder.glob("rank0.*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert sum(event["name"] == "collate" for event in events) >= 2
    assert "gpuGetDeviceCount" not in log and "profiler_start" not in log


@pytest.mark.parametrize("engine", ["pillow", "workers", "threads"])
def test_every_engine_records_spans(engine: Way, photo_folder: Path) -> None:
    data = DataConfig(root=str(photo_folder), image_size=32, resize=32)
    source, pipeline = open_source(data, "train", Path()), pipeline_of(engine, num_workers=1)
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", 24, seed=0, profile=True))
    first, second = loader.epoch(0)
    loader.close()
    for batch in (first, second):
        names = [span.name for span in batch.spans]
        assert names.count("read") in (1, 24) and "collate" in names
        assert all(0 <= span.end - span.start < 60e9 for span in batch.spans)
        in_process = {span.process for span in batch.spans} == {os.getpid()}
        assert in_process == (engine == "threads")
    assert max(s.end for s in first.spans) <= min(s.start for s in second.spans)


def test_batches_have_no_spans_without_profiling(photo_folder: Path) -> None:
    data = DataConfig(root=str(photo_folder), image_size=32, resize=32)
    source, pipeline = open_source(data, "train", Path()), PipelineConfig("threads", num_workers=1)
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", 24, seed=0))
    assert all(batch.spans == () for batch in loader.epoch(0))
    loader.close()


def test_on_a_gpu_a_range_has_host_and_gpu_time() -> None:
    def event(name: str, category: str, milliseconds: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": category, "ts": 0.0, "dur": 1e3 * milliseconds}

    on_host = [event(name, "user_annotation", 2) for name in ("ProfilerStep#1", "forward")]
    on_gpu = [event(name, "gpu_user_annotation", 30) for name in ("ProfilerStep#1", "forward")]
    rows = range_table({"traceEvents": on_host}, [])
    assert [row.split() for row in rows[1:]] == [["forward", "1.0", "2.000"]]
    rows = range_table({"traceEvents": [*on_host, *on_gpu]}, [])
    assert "host ms/step" in rows[0] and "GPU ms/step" in rows[0]
    assert [row.split() for row in rows[1:]] == [["forward", "1.0", "2.000", "30.000"]]


def test_spans_are_added_on_the_profilers_time_axis_under_their_own_process() -> None:
    base = 1_000_000_000
    step: dict[str, Any] = {"ph": "X", "name": "step", "pid": 1, "tid": 1, "ts": 50.0, "dur": 100.0}
    trace: dict[str, Any] = {"baseTimeNanoseconds": base, "traceEvents": [step]}
    inside = Span("read", base + 60_000, base + 70_000, process=7, thread=8)
    overlapping = Span("read", base + 10_000, base + 51_000, process=7, thread=8)
    before = Span("read", base + 10_000, base + 49_000, process=7, thread=8)
    after = Span("read", base + 151_000, base + 152_000, process=7, thread=8)
    spans = within(trace, [before, overlapping, inside, after])
    assert spans == [overlapping, inside]
    add_spans(trace, spans)
    read = [event for event in trace["traceEvents"] if event["name"] == "read"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in read] == [
        (7, 8, 10.0, 41.0),
        (7, 8, 60.0, 10.0),
    ]
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {"data worker", "data"}
