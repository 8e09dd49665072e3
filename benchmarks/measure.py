"""Timing, tables and plots that all benchmarks share.

Contenders take turns, round after round, so that what else the machine does falls on all alike; CPU
seconds are counted, not the clock; the median round stands; ratios say more than times.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def cpu_milliseconds(
    contenders: Mapping[str, Callable[[], object]], *, works: int, rounds: int = 7
) -> dict[str, float]:
    """CPU milliseconds per work, the median of alternating rounds after one to warm up.

    One call of a contender does `works` works. All of this process's threads count.
    """
    _keep_freed_memory()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            started = time.process_time()
            work()
            if turn > 0:
                seconds[name].append(time.process_time() - started)
    return {name: 1e3 * statistics.median(times) / works for name, times in seconds.items()}


def _keep_freed_memory() -> None:
    """Lets glibc reuse freed memory at once instead of returning it to the kernel.

    Whether a result's pages are new, and so cost a fault each, depends on what lies beside them in
    the heap: chance, worth 0.15 ms per 256x256 image, and not the same for all contenders.
    """
    trim_threshold, mmap_threshold = -1, -3  # mallopt(3)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 32 << 20)


def machine() -> str:
    """The machine, the load on it and the day, in one line."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    load = f"load {os.getloadavg()[0]:.1f} when it ended"
    return f"{model}, {os.cpu_count()} CPUs{gpu}, {load} on {datetime.date.today()}"


def versions(packages: Sequence[str]) -> str:
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant digits."""

    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def bars(name: str, title: str, label: str, values: Mapping[str, float], ours: str) -> None:
    """Writes docs/results/NAME.png: one bar each, those whose name starts with `ours` in colour."""
    figure, axes = plt.subplots(figsize=(7, 0.45 * len(values) + 1.2))
    colours = ["tab:orange" if key.startswith(ours) else "tab:gray" for key in values]
    drawn = axes.barh(list(values), list(values.values()), color=colours)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=label)
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.margins(x=0.12)
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png", dpi=80, bbox_inches="tight")
    plt.close(figure)


def write(
    name: str, title: str, method: str, tables: Sequence[str], packages: Sequence[str] = ()
) -> str:
    """Writes docs/results/NAME.md, with the machine, the day and versions, and returns its text."""
    where = f"{machine()}; {versions(packages)}."
    text = f"# {title}\n\n{method}\n\n{where}\n\n" + "\n".join(tables)
    if (RESULTS / f"{name}.png").exists():
        text += f"\n![{title}]({name}.png)\n"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    return text
