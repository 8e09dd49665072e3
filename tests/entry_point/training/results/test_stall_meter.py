"""The stall meter, headspace and the verdict."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from entry_point.config.train_config import load_train_config
from entry_point.data.batch import Batch
from entry_point.job.devices import Devices, RunAhead
from entry_point.job.metrics_line import METRICS, STEP_PARTS, STEP_TIMES
from entry_point.job.program import ExitCode
from entry_point.training.input import device_batches
from entry_point.training.learner import Learner
from entry_point.training.models import Normalize
from entry_point.training.results.headspace import (
    KEPT_BATCHES,
    Headspace,
    verdict,
)
from entry_point.training.results.times import StallMeter, Stopwatch, percentiles, wait_share
from entry_point.training.results.totals import Totals
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import OVERRIDES, weights
from tests.entry_point.training.gpu.simulated_gpu import SimulatedGpu
from tests.entry_point.training.tasks.label_sources import classes, task_of
from tests.entry_point.training.training_jobs import read_records, timeless

CPU = Devices(torch.device("cpu"), None)


@dataclass
class Watch(Stopwatch):
    """A stopwatch with fixed seconds."""

    seconds: float = 0.0


def times(*steps: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(steps, dtype=np.float32).reshape(-1, len(STEP_PARTS))


def batches(count: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=draw),
            torch.arange(4),
            torch.arange(4),
        )
        for _ in range(count)
    ]


def test_a_stopwatch_measures_its_block() -> None:
    with Stopwatch(CPU.device) as watch:
        time.sleep(0.01)
    assert 0.01 <= watch.seconds < 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_stopwatch_measures_gpu_time_not_launch_time() -> None:
    device = torch.device("cuda")
    a = torch.randn(8192, 8192, device=device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    with Stopwatch(device) as watch:
        for _ in range(10):
            a = a @ a
    launched = time.perf_counter() - began
    assert watch.seconds > launched


def test_percentiles_cover_the_epoch_or_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = StallMeter(CPU)
    for wait in (1.0, 2.0):
        meter.begin_epoch()
        for _ in range(3):
            now += wait + 0.25 + 0.5
            meter.add(wait, Watch(seconds=0.25), Watch(seconds=0.5))
    record = meter.record()
    assert list(record) == STEP_TIMES
    assert [record[f"data_wait_ms_p{p}"] for p in (50, 90, 99)] == [2000, 2000, 2000]
    assert (record["copy_ms_p99"], record["compute_ms_p50"]) == (250, 500)
    assert percentiles(meter.all_settled())["data_wait"] == [2000, 2000, 2000]


WAITS = "after the first steps, training waits for data"


def test_the_first_steps_of_a_process_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline fills while a GPU's kernels are chosen or compiled."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = StallMeter(CPU)
    meter.begin_epoch()
    for wait in (*[1.0] * 10, *[0.0] * 40):
        now += wait + 0.5
        meter.add(wait, Watch(), Watch(seconds=0.5))
    record = {"step": 50, "loss": 1.0, "images_per_s": 20.0, "data_wait_pct": 28.0}
    totals = Totals([record], 16, meter.all_settled())
    assert totals.verdict == f"not input-bound: {WAITS} 0.0 % of the time"


def test_work_between_steps_counts_for_no_step() -> None:
    meter = StallMeter(CPU)
    meter.begin_epoch()
    meter.add(0.0, Watch(), Watch())
    with meter.pause():
        time.sleep(1)
    meter.add(0.0, Watch(), Watch())
    assert meter.epoch[:, STEP_PARTS.index("step")].max() < 1


def test_the_drain_at_a_log_line_counts_for_no_step_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimulatedGpu()
    gpu.install(monkeypatch)
    device = torch.device("cuda")
    meter = StallMeter(Devices(device, None))
    meter.begin_epoch()
    ahead = RunAhead(device)
    for step in range(1, 101):
        with Stopwatch(device) as copying:
            gpu.launch(0.01)
        with Stopwatch(device) as computing:
            gpu.launch(0.09)
        meter.add(0.0, copying, computing)
        ahead.wait()
        if step % 10 == 0:
            with meter.pause():
                meter.settle()
                gpu.host += 0.05
    steps = percentiles(meter.epoch)["step"]
    assert steps == pytest.approx([100, 100, 101], abs=1.5)
    assert gpu.stream == pytest.approx(10.5, abs=0.1)  # 100 steps, ten pauses


@pytest.mark.parametrize(("wait", "idle"), [(0.05, 0.0), (0.15, 0.05)])
def test_waiting_counts_as_far_as_it_leaves_a_gpu_idle(
    wait: float, idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that computes 0.1 s for each step has work while its host waits for a batch."""
    gpu = SimulatedGpu()
    gpu.install(monkeypatch)
    device = torch.device("cuda")
    meter, ahead = StallMeter(Devices(device, None)), RunAhead(device)
    meter.begin_epoch()
    for _ in range(100):
        gpu.host += wait
        with Stopwatch(device) as copying:
            pass
        with Stopwatch(device) as computing:
            gpu.launch(0.1)
        meter.add(wait, copying, computing)
        ahead.wait()
    waited = meter.epoch[10:, STEP_PARTS.index("data_wait")]
    assert waited == pytest.approx(np.full(90, idle), abs=0.002)
    assert meter.waited() == pytest.approx(100 * idle, abs=0.3)
    assert meter.waited() == 0


def test_the_host_is_at_most_two_steps_ahead_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu()
    gpu.install(monkeypatch)
    ahead = RunAhead(torch.device("cuda"))
    for step in range(1, 10):
        gpu.launch(0.1)
        ahead.wait()
        assert gpu.host == pytest.approx(0.1 * max(0, step - 2), abs=0.01)


def test_percentiles_of_step_times() -> None:
    steps = times(*((0.0, 0.0, 0.0, n / 1000) for n in range(101)))
    assert percentiles(steps)["step"] == [50, 90, 99]
    assert percentiles(steps[:0]) == {}


def test_the_wait_share_weights_steps_by_their_time() -> None:
    assert wait_share(times((0.5, 0, 0, 1), (0, 0, 0, 1))) == pytest.approx(0.25)
    assert wait_share(times()) == 0.0


@pytest.mark.parametrize(
    ("wait", "speedup", "sentence"),
    [
        (
            0.41,
            1.7,
            f"input-bound: {WAITS} 41.0 % of the time; free input would make training 1.7x faster",
        ),
        (
            0.0,
            1.01,
            f"not input-bound: {WAITS} 0.0 % of the time; "
            "free input would not make training faster (1.01x)",
        ),
        (
            0.01,
            1.3,
            f"input takes CPU time from training: {WAITS} 1.0 % of the time, "
            "but free input would make training 1.3x faster",
        ),
        (0.41, None, f"input-bound: {WAITS} 41.0 % of the time"),
        (0.01, None, f"not input-bound: {WAITS} 1.0 % of the time"),
    ],
)
def test_the_verdict_is_one_line(wait: float, speedup: float | None, sentence: str) -> None:
    assert verdict(wait, speedup) == sentence


@pytest.mark.parametrize(("seconds", "words"), [(1.0, "too short"), (20.0, "input-bound")])
def test_a_run_of_a_second_is_not_judged(seconds: float, words: str) -> None:
    """In it, most of the waiting is that of the first batches."""
    record = {"step": 10, "loss": 1.0, "images_per_s": 160 / seconds, "data_wait_pct": 80.0}
    assert Totals([record], 16).verdict.startswith(words)


@pytest.mark.parametrize("seconds", [100.0, 1e-9])
def test_headspace_compares_real_steps_with_steps_on_kept_batches(seconds: float) -> None:
    config, _ = load_train_config(
        [
            "model.name=tests.own_models.tiny_net_with_state",
            "optim.ema_decay=0.9",
        ]
    )
    learner = Learner(config, CPU, task_of(classes(4)), steps_per_epoch=9, channels=Path())
    normalize = Normalize(*config.data.normalization)
    trained: list[int] = []

    def train(some: object, _deadline: float = 0.0) -> int:
        before = len(trained)
        for batch in device_batches(some, CPU.device, normalize):  # type: ignore[arg-type]
            trained.append(int(batch.images.shape[0]))
            learner.loss(batch.images, batch.labels, len(trained))
            learner.update()
        return len(trained) - before

    headspace = Headspace(wanted=True)
    train(headspace.keep(iter(batches(9))))
    before = {key: value.clone() for key, value in learner.model.state_dict().items()}
    rate, count = learner.schedule.get_last_lr(), len(trained)
    assert headspace.due
    start, rest = [(1e3, 0, 0, 1e3)] * 3, [(seconds / 4, 0, 0, seconds)] * 6
    measured = headspace.measure(times(*start, *rest), learner, CPU.device, train)
    assert headspace.measured == measured and (measured.speedup > 1) == (seconds > 1)
    assert measured.wait == pytest.approx(0.25)  # without the first steps, as in the speedup
    assert len(trained) > count + KEPT_BATCHES and not headspace.due
    assert all(torch.equal(before[k], v) for k, v in learner.model.state_dict().items())
    assert learner.schedule.get_last_lr() == rate


def test_kept_batches_do_not_change_when_the_loader_reuses_its_memory() -> None:
    headspace = Headspace(wanted=True)
    made = batches(2)
    for batch in headspace.keep(iter(made)):
        batch.images.zero_()
    assert all(batch.images.any() for batch in headspace._kept)


def test_measuring_headspace_does_not_change_the_training(
    tmp_path: Path, photo_folder: Path
) -> None:
    for name, wanted in (("plain", "null"), ("measured", "headspace")):
        overrides = [*OVERRIDES, f"trainer.diagnose={wanted}"]
        assert forked.run(tmp_path / name, photo_folder, overrides) == 0
    one, other = weights(tmp_path / "plain"), weights(tmp_path / "measured")
    assert all(torch.equal(one[key], other[key]) for key in one)
    records = read_records(tmp_path / "measured")
    assert [r["step"] for r in records if "headspace" in r] == [3]
    rest = [r for r in records if "headspace" not in r]
    assert timeless(rest) == timeless(read_records(tmp_path / "plain"))
    log = (tmp_path / "measured" / "log").read_text()
    assert re.search(
        r"^(not )?input.* waits for data [\d.]+ % of the time.* free input would", log, re.M
    )


def test_a_stop_during_headspace_keeps_the_epochs_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    """An epoch has three steps, so the fourth is part of the measurement."""
    net = "model.name=tests.own_models.stopping_net"
    overrides = [*OVERRIDES, net, "optim.ema_decay=null", "trainer.diagnose=headspace"]
    assert forked.run(tmp_path, photo_folder, overrides) == ExitCode.STOPPED
    (newest,) = sorted((tmp_path / "checkpoints").glob("*3*"))[-1:]
    progress = torch.load(newest, weights_only=False)["progress"]
    assert (progress["epoch"], progress["step"]) == (1, 0)


def test_every_epoch_logs_the_percentiles_of_its_steps(tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path, photo_folder, OVERRIDES) == 0
    records = [r for r in read_records(tmp_path) if "step_ms_p50" in r]
    assert [r["step"] for r in records] == [3, 6, 9, 12]
    for record in records:
        parts = sum(record[f"{part}_ms_p50"] for part in STEP_PARTS[:-1])
        assert 0 < parts <= 3 * record["step_ms_p99"]
    assert set(STEP_TIMES) < set(METRICS.values())
    assert "verdict" in (tmp_path / "log").read_text()
