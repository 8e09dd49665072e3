"""Part 6: the page, docs/results/gpu.md, with a verdict per promise."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from benchmarks import measure
from benchmarks.gpu.gpu_part import Part
from benchmarks.gpu.gpu_plan import FULL
from benchmarks.pipelines.run_case import DALI_READER
from benchmarks.pipelines.table import DALI_WAYS

TITLE = "Training on a GPU"
PARTS = {1: "the machine and the tests", 2: "behaviour", 3: "eager", 4: "compiled", 5: "serving"}
_VERDICT = {True: "holds", False: "**does not hold**", None: "not measured"}


def page(parts: Mapping[int, Part], device: str, has_plot: bool) -> str:
    """The whole page, from whichever parts have run."""
    lines = [f"# {TITLE}\n"]
    if device != "cuda":
        lines.append("A dry run on a CPU: its figures say nothing about a GPU.\n")
    lines += [
        f"ResNet-50 in bf16, channels_last, on {FULL.images} JPEGs of 533x800 pixels (48 "
        "photographs, repeated; quality 90, 4:2:0) in shards with side indexes: RandomResizedCrop "
        "224, flip, normalization on the GPU. Real jobs of three epochs; speed and percentiles are "
        "the last epoch's, without logging and checkpoints. Step / step from memory: the first "
        "epoch's settled steps against the same steps on batches kept in memory. Memory is the "
        "most in use at once: on the GPU by nvidia-smi, on the host without the page cache. "
        f"{DALI_WAYS}\n",
        f"`make gpu-check`; {datetime.date.today()}.\n",
        "## Promises\n",
        _promises(parts),
        "## Speed\n",
        _speeds(parts),
    ]
    if has_plot:
        lines.append(f"![{TITLE}](plots/gpu.png)\n")
    lines.append("## Machine\n")
    facts = {name: text for part in parts.values() for name, text in part.facts.items()}
    lines.append(measure.table(["", ""], list(facts.items())))
    return "\n".join(lines)


def _promises(parts: Mapping[int, Part]) -> str:
    rows = [
        [check.promise, _VERDICT[check.holds], check.found.replace("|", "/").replace("\n", " ")]
        for part in parts.values()
        for check in part.checks
    ]
    missing = [what for number, what in PARTS.items() if number not in parts]
    rows += [[f"Part: {what}", "not run", ""] for what in missing]
    return measure.table(["promise", "verdict", "found"], rows)


def _speeds(parts: Mapping[int, Part]) -> str:
    rows = [row for part in parts.values() for row in part.rows]
    if not rows:
        return "Not measured.\n"
    return measure.table(list(rows[0]), [list(row.values()) for row in rows])


def _shown(row: Mapping[str, float | str]) -> str:
    """The name of a job in the plot."""
    case = str(row["case"])
    whose = "" if case.startswith(DALI_READER) else "this template: "
    return f"{whose}{case}, {row['model']}"


def write_page(parts: Mapping[int, Part], device: str, folder: Path) -> tuple[Path, bool]:
    """Write FOLDER/gpu.md and its plot; returns the page, and whether no promise is broken."""
    steps = {
        _shown(row): 1e3 / float(row["images/s"]) for part in parts.values() for row in part.rows
    }
    if steps:
        label = "ms per image, whole training step"
        measure.bars("gpu", TITLE, label, steps, folder / "plots")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpu.md"
    path.write_text(page(parts, device, bool(steps)), encoding="utf-8")
    broken = [c for part in parts.values() for c in part.checks if c.holds is False]
    return path, not broken
