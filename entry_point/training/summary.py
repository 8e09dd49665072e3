"""What a run says of itself at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from entry_point.metrics_line import PERCENTILES, STEP_PARTS
from entry_point.run_folder import RunFolder
from entry_point.training.headspace import Measured, verdict
from entry_point.training.interval import Interval
from entry_point.training.stall_meter import Times, percentiles, wait_share


@dataclass
class Totals:
    """Sums over this process's training steps, evaluation left out."""

    images: int = 0
    training_seconds: float = 0.0
    wait_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)
    steps: Times = field(default_factory=lambda: np.empty((0, len(STEP_PARTS)), np.float32))
    """All ranks' steps, known at the end."""
    headspace: Measured | None = None
    """What free input would change, where that was measured."""

    def add(self, interval: Interval) -> None:
        """Count what an interval measured."""
        self.images += interval.images
        self.training_seconds += interval.elapsed
        self.wait_seconds += interval.wait

    @property
    def images_per_s(self) -> float:
        return self.images / self.training_seconds if self.training_seconds else 0.0

    @property
    def data_wait_pct(self) -> float:
        seconds = self.training_seconds
        return 100 * self.wait_seconds / seconds if seconds else 0.0

    @property
    def verdict(self) -> str:
        return verdict(*(self.headspace or (wait_share(self.steps),)))


def summary_lines(totals: Totals, accuracy: float, best: float, run: RunFolder) -> list[str]:
    """The closing lines: how good, how fast, and where everything is."""
    minutes, seconds = divmod(round(time.monotonic() - totals.started), 60)
    files = {
        "model": run.model / "model.pt",
        "metrics": run.output_data / "metrics.jsonl",
        "report": run.output_data / "report.html",
        "plot": run.output_data / "summary.png",
    }
    rows = {
        "validation accuracy": f"{100 * accuracy:.2f} % (best {100 * best:.2f} %)",
        "training speed": f"{totals.images_per_s:.0f} images/s",
        "waiting for data": f"{totals.data_wait_pct:.1f} % of training time",
        **_step_rows(totals),
        **{name: _shown(path) for name, path in files.items() if path.is_file()},
        "TensorBoard": f"tensorboard --logdir {_shown(run.tensorboard)}",
    }
    width = max(map(len, rows))
    return [
        f"Finished in {minutes} min {seconds} s",
        *(f"  {name:<{width}}  {value}" for name, value in rows.items()),
    ]


def _step_rows(totals: Totals) -> dict[str, str]:
    """What the steps took in milliseconds, and what that means."""
    parts = percentiles(totals.steps)
    if not parts:
        return {}
    times = [
        f"{part.replace('_', ' ')} " + " / ".join(f"{value:.3g}" for value in values)
        for part, values in parts.items()
    ]
    name = "ms at p" + " / p".join(map(str, PERCENTILES))
    return {name: ", ".join(times), "verdict": totals.verdict}


def _shown(path: Path) -> str:
    """Relative to where the person stands, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
