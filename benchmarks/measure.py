"""Timing, tables and plots for all benchmarks.

Contenders alternate, round after round, so that other load on the machine affects all of them
alike. Most figures are CPU time, not wall-clock time, of the median round.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PLOTS = RESULTS / "plots"
Contender = TypeVar("Contender", bound=Hashable)
Found = TypeVar("Found")
Time = TypeVar("Time", float, NDArray[np.float64])
# In every plot a contender has the color of the longest of these keys that its name contains.
COLORS = {
    "": "#adb5bd",
    "this": "#e8590c",
    "shards": "#e8590c",
    "files": "#ffa94d",
    "plain file": "#ffa94d",
    "(workers)": "#a61e4d",
    "(dali)": "#c0eb75",
    "Pillow": "#868e96",
    "Pillow + torchvision": "#868e96",
    "torchvision": "#1c7ed6",
    "OpenCV": "#2f9e44",
    "simplejpeg": "#0c8599",
    "torchcodec": "#7048e8",
    "DALI": "#74b816",
    "SPDL": "#3b5bdb",
    "ImageFolder": "#343a40",
    "WebDataset": "#f08c00",
    "LitData": "#792ee5",
    "MosaicML": "#e64980",
    "TurboLoader": "#087f5b",
    "ONNX Runtime": "#4263eb",
    "OpenVINO": "#5f3dc4",
    "crop + skip": "#5c4033",
    "lower bound:": "#ced4da",
}


def color(name: str) -> str:
    """Returns the contender's color in all plots."""
    return COLORS[max((key for key in COLORS if key in name), key=len)]


def cpu_milliseconds(
    contenders: Mapping[str, Callable[[], object]], *, works: int, rounds: int = 7
) -> dict[str, float]:
    """CPU milliseconds per unit of work: the median of alternating rounds after one warm-up round.

    One call of a contender does `works` units. All threads of this process count.
    """
    keep_freed_memory()
    seconds = alternate(timed(contenders, time.process_time), rounds + 1)
    return {name: 1e3 * statistics.median(s[1:]) / works for name, s in seconds.items()}


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory at once instead of returning it to the kernel.

    Otherwise the heap's layout decides by chance whether a result's pages are new. New pages cost
    page faults, up to 0.15 ms per 256x256 image, and not the same for all contenders.
    """
    trim_threshold, mmap_threshold = -1, -3  # mallopt(3)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 32 << 20)


def alternate(
    contenders: Mapping[Contender, Callable[[], Found]], rounds: int
) -> dict[Contender, list[Found]]:
    """Calls each contender once per round; returns what each of its calls returned."""
    found: dict[Contender, list[Found]] = {name: [] for name in contenders}
    for name in turns(contenders, rounds):
        found[name].append(contenders[name]())
    return found


def turns(contenders: Iterable[Contender], rounds: int) -> list[Contender]:
    """Returns whose turn it is: each once per round. Every second round is in reverse order, so
    that a machine that slows down steadily slows all of them alike."""
    order = list(contenders)
    return [one for number in range(rounds) for one in (order, order[::-1])[number % 2]]


def timed(
    contenders: Mapping[str, Callable[[], object]], clock: Callable[[], Time]
) -> dict[str, Callable[[], Time]]:
    """Returns contenders whose calls return the seconds by which they move the clock, or clocks."""

    def seconds(work: Callable[[], object]) -> Time:
        started = clock()
        work()
        return clock() - started

    return {name: partial(seconds, work) for name, work in contenders.items()}


def use(items: Iterable[object]) -> None:
    """Take all items, and keep none."""
    deque(items, maxlen=0)


def hardware() -> str:
    """Returns the machine, in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = [*models, platform.processor() or platform.machine()][0]
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{processor}, {os.cpu_count()} CPUs{gpu}"


def machine() -> str:
    """Returns the machine, its load and the date, in one line."""
    load = f"load {os.getloadavg()[0]:.1f} at the end"
    return f"{hardware()}, {load}, {datetime.date.today()}"


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def versions(packages: Sequence[str]) -> str:
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table; floats have three significant digits."""

    def cell(value: object) -> str:
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        return text.replace("|", "/").replace("\n", " ")

    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def bars(name: str, title: str, label: str, values: Mapping[str, float]) -> None:
    """Write PLOTS/NAME.png with one horizontal bar per contender."""
    draw_bars(PLOTS / f"{name}.png", {f"{label} (less is better)": values}, title=title)


def draw_bars(
    file: Path, panels: Mapping[str, Mapping[str, float]], *, title: str = "", ink: str = "black"
) -> None:
    """Write a picture of bars, side by side for each panel, whose contenders are among those of the
    first one. `ink` is the color of the text."""
    import matplotlib  # here, as the check on a GPU draws nothing

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(next(iter(panels.values())))
    size = (6.5 + 1.5 * len(panels), 0.4 * len(names) + 1.2)
    with plt.rc_context({"svg.fonttype": "none", "text.color": ink, "ytick.color": ink}):
        figure, several = plt.subplots(1, len(panels), sharey=True, squeeze=False, figsize=size)
        for axes, (label, values) in zip(several[0], panels.items(), strict=True):
            lengths = [values.get(name, 0.0) for name in names]
            drawn = axes.barh(names, lengths, color=[color(name) for name in names])
            texts = [f"{n:.0f}" if n >= 1000 else f"{n:.3g}" if n else "" for n in lengths]
            axes.bar_label(drawn, texts, padding=3)
            axes.set_title(label, fontsize="medium")
            axes.margins(x=0.15)
            axes.spines[:].set_visible(False)
            axes.tick_params(left=False, bottom=False, labelbottom=False)
        axes.invert_yaxis()
        figure.suptitle(title)
        figure.tight_layout()
        file.parent.mkdir(parents=True, exist_ok=True)
        no_day = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=90, transparent=file.suffix == ".svg", metadata=no_day)
        plt.close(figure)


def measured_by(command: str, packages: Sequence[str]) -> str:
    """Returns a page's account of its origin: command, machine, day and versions."""
    return f"`{command}`; {machine()}; {versions(packages)}."


def write_page(file: Path, title: str, *parts: str) -> str:
    """Write a page of paragraphs and tables, with an empty line between them; returns it."""
    text = "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return text


def write(
    name: str,
    only: str,
    title: str,
    method: str,
    tables: Sequence[str],
    packages: Sequence[str] = (),
) -> None:
    """Write and print docs/results/NAME.md, the page of `make figures ONLY=...`."""
    made = measured_by(f"make figures ONLY={only}", packages)
    plot = f"![{title}](plots/{name}.png)" if (PLOTS / f"{name}.png").exists() else ""
    sys.stdout.write(write_page(RESULTS / f"{name}.md", title, method, made, *tables, plot))
