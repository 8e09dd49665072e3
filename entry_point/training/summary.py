"""What a run says of itself at its end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from entry_point.run_folder import RunFolder
from entry_point.training.interval import Interval


@dataclass
class Totals:
    """Sums over this process's training steps, evaluation left out."""

    images: int = 0
    training_seconds: float = 0.0
    wait_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

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
        **{name: _shown(path) for name, path in files.items() if path.is_file()},
        "TensorBoard": f"tensorboard --logdir {_shown(run.tensorboard)}",
    }
    width = max(map(len, rows))
    return [
        f"Finished in {minutes} min {seconds} s",
        *(f"  {name:<{width}}  {value}" for name, value in rows.items()),
    ]


def _shown(path: Path) -> str:
    """Relative to where the person stands, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
