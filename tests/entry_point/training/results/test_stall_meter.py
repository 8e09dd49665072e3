"""How long steps take, how much of it waits for data, and the verdict."""

import math
import time

import numpy as np
import pytest
import torch

from entry_point.job.devices import Devices, RunAhead
from entry_point.job.metrics_line import METRICS, STEP_TIMES
from entry_point.training.results import totals
from entry_point.training.results.times import (
    COLUMNS,
    Moment,
    StallMeter,
    Times,
    percentiles,
)
from entry_point.training.results.totals import Totals
from tests.entry_point.training.gpu.simulated_gpu import SimulatedGpu

CPU = Devices(torch.device("cpu"), None)
WAITS = "after the first steps, training waits for data"
LARGE = "photos much larger than a sample load faster if packed with `max_side`"
COMPILE = "trainer.compile=default usually makes such steps 1.2 to 1.4 times as fast"


class Clock:
    """A CPU's clock, with steps of so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def step(self, meter: StallMeter, wait: float, compute: float, input_cpu: float = 0.0) -> None:
        self.now += wait
        computing = Moment(CPU.device)
        self.now += compute
        meter.add(wait, computing, input_cpu)


def steps(*rows: tuple[float, float, float]) -> Times:
    return np.array(rows, dtype=np.float32).reshape(-1, len(COLUMNS))


def record(seconds: float, wait_pct: float = 28.0) -> dict[str, float]:
    return {"step": 10, "loss": 1.0, "images_per_s": 160 / seconds, "data_wait_pct": wait_pct}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_moments_measure_gpu_time_not_launch_time() -> None:
    device = torch.device("cuda")
    a = torch.randn(8192, 8192, device=device)
    torch.cuda.synchronize()
    launching, began = time.perf_counter(), Moment(device)
    for _ in range(10):
        a = a @ a
    ended, launched = Moment(device), time.perf_counter() - launching
    assert ended.seconds_since(began) > launched


def test_percentiles_cover_the_epoch_or_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, meter = Clock(monkeypatch), StallMeter(CPU)
    for wait in (1.0, 2.0):
        meter.begin_epoch()
        for _ in range(3):
            clock.step(meter, wait, 0.5)
    record = meter.record()
    assert list(record) == STEP_TIMES and {*STEP_TIMES} < {*METRICS.values()}
    assert [record[f"data_wait_ms_p{p}"] for p in (50, 90, 99)] == [2000, 2000, 2000]
    assert record["step_ms_p50"] == 2500
    assert percentiles(meter.all_settled())["data_wait"] == [2000, 2000, 2000]
    assert percentiles(meter.all_settled()[:0]) == {}


def test_the_first_steps_of_a_process_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline fills while a GPU's kernels are chosen or compiled."""
    clock, meter = Clock(monkeypatch), StallMeter(CPU)
    meter.begin_epoch()
    for wait in (*[1.0] * 10, *[0.0] * 40):
        clock.step(meter, wait, 0.5, math.nan)
    judged = Totals([record(40.0)], 16, meter.all_settled())
    assert judged.verdict == f"not input-bound: {WAITS} 0.0 % of the time"


def test_work_between_steps_counts_for_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, meter = Clock(monkeypatch), StallMeter(CPU)
    meter.begin_epoch()
    clock.step(meter, 0.0, 0.5)
    with meter.pause():
        clock.now += 9
    clock.step(meter, 0.0, 0.5)
    assert meter.epoch[:, COLUMNS.index("step")].tolist() == [0.5, 0.5]


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
        computing = Moment(device)
        gpu.launch(0.1)
        meter.add(wait, computing, 0.0)
        ahead.wait()
    waited = meter.epoch[10:, COLUMNS.index("data_wait")]
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


def test_the_verdict_weights_steps_by_their_time() -> None:
    rows = steps((0.5, 1, math.nan), (0, 3, math.nan))
    assert f"{WAITS} 12.5 % of the time" in Totals([record(20.0)], 16, rows).verdict


@pytest.mark.parametrize(
    ("wait", "may_compile", "line"),
    [
        (0.41, True, f"input-bound: {WAITS} 41.0 % of the time; {LARGE}"),
        (0.01, False, f"not input-bound: {WAITS} 1.0 % of the time"),
        (0.01, True, f"not input-bound: {WAITS} 1.0 % of the time; {COMPILE}"),
    ],
)
def test_the_verdict_is_one_line_that_names_what_is_faster(
    wait: float, may_compile: bool, line: str
) -> None:
    rows = steps(*[(wait, 1.0, math.nan)] * 10)
    assert Totals([record(20.0)], 16, rows, may_compile=may_compile).verdict == line


def test_a_run_of_a_second_is_not_judged() -> None:
    """In it, most of the waiting is that of the first batches."""
    assert Totals([record(1.0)], 16).verdict.startswith("too short")
    assert Totals([record(20.0)], 16).verdict.startswith("input-bound: training waits for data")


@pytest.mark.parametrize(
    ("step", "ranks", "expected"),
    [
        # Half of each step waits: without it, steps come twice as fast.
        ((0.1, 0.2, 0.2), 1, "2,560 images/s need 2.0 cores for input; 16 available"),
        ((0.0, 8.0, 0.2), 1, "32 images/s need less than 0.05 cores for input; 16 available"),
        ((0.0, 0.1, 0.2), 2, "2,560 images/s per rank need 2.0 cores for input; 16 available"),
    ],
)
def test_the_cores_are_those_of_steps_that_do_not_wait(
    step: tuple[float, float, float],
    ranks: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(totals, "cores_per_rank", lambda: 16)
    judged = Totals([record(20.0)], 256 * ranks, steps(*[step] * 10), ranks)
    assert f" of the time; {expected}" in judged.verdict
