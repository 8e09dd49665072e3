"""trainer.diagnose=profile: a trace of ten steps that other tools read, and torch's table."""

import gzip
import json
import re
from pathlib import Path

from tests.entry_point.training import forked

STEP = {"data_wait", "copy", "prepare", "forward", "backward", "optimizer"}
PIPELINE = {"read", "plan", "decode", "augment", "collate"}


def test_a_trace_shows_the_parts_of_the_step_and_of_the_pipelines_threads(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [
        *("pipeline=threads", "pipeline.num_workers=1", "trainer.batch_size=2"),
        *("trainer.diagnose=profile", "augment.per=sample"),
        "augment.name=project.stall.StallSample",
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
    threads = {}
    for name in STEP | PIPELINE:
        found = [e for e in events if e["name"] == name and e["ph"] == "X"]
        assert any(first <= e["ts"] <= last and e["dur"] >= 0 for e in found), name
        threads[name] = {e["tid"] for e in found}
    trainer = {e["tid"] for e in steps}
    assert all((threads[name] == trainer) == (name in STEP) for name in threads)
    log, text = (tmp_path / "log").read_text(), (folder / "rank0.txt").read_text()
    rows = {line.split()[0] for line in text.splitlines() if line.split()}
    assert STEP | PIPELINE <= rows
    operator = "custom_op::decode_crop_resize_batch"
    assert "aten::" in text and operator in text
    assert re.search(rf"^  trace +{re.escape(str(file))}$", log, re.M)


def test_a_profile_of_a_short_epoch_is_one_of_its_steps(tmp_path: Path, photo_folder: Path) -> None:
    """Without noise in the log. The training process makes the batches itself."""
    overrides = ["pipeline=workers", "pipeline.num_workers=0", "trainer.diagnose=profile"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    log, folder = (tmp_path / "log").read_text(), tmp_path / "output" / "data" / "profile"
    assert log.count("trace ") == 2  # when it is written, and in the closing lines
    text = (folder / "rank0.txt").read_text()
    assert "forward" in text and "decode" in text
    assert len(list(folder.glob("rank0.*.pt.trace.json.gz"))) == 1
    assert "gpuGetDeviceCount" not in log and "profiler_start" not in log
