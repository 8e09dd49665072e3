"""The page docs/results/gpu-NAME.md: the figures with a picture, and a verdict per promise."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure
from benchmarks.gpu.gpu_machine import Origin
from benchmarks.gpu.gpu_plan import CORES, FULL, MODELS, OURS, PARTS, PEERS, ROUNDS
from benchmarks.gpu.gpu_runs import ENDED, Outcome, Result
from benchmarks.gpu.gpu_verdicts import NoFigures, Rounds, Verdict, figures, judge, rounds_of
from benchmarks.pipelines.picture import Row, write_bars

TITLE = "Training on a GPU"
METHOD = (
    f"Real jobs in bf16 with channels_last and batches of {FULL.batch}, on {CORES} cores: "
    f"{FULL.images} JPEGs of 533x800 pixels, {FULL.peer_images} for the others "
    "(48 photographs, repeated; quality 90, 4:2:0), "
    "RandomResizedCrop 224, flip, normalization on the GPU. This template reads shards with side "
    "indexes. The others read plain files: DALI with its own reader, random crop and prefetch, "
    "torchvision with ImageFolder, its transforms and torch's DataLoader. Figures are the second "
    "epoch's, those of averaging and compilation the second half of the first. Input from memory: "
    "the first epoch's settled steps, repeated on batches kept in "
    "memory. Cores busy: CPU seconds of the job's processes per second. Cores that keep one GPU "
    "busy: the same, scaled to the speed of input from memory; what DALI decodes on the GPU takes "
    "time from the model, which more cores do not give back. DALI upsamples colors as libjpeg "
    "does; with an nvJPEG older than 13.2 (CUDA 13.3) it warns that it cannot do so for a crop on "
    "the GPU, and its GPU decoder also decodes on the CPU. Promises of 2 % compare "
    f"{ROUNDS} alternating rounds: they hold or break if all of the mean's 95 % interval does. The "
    "GPU's clocks are read before and after each run."
)

PICTURE = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="plots/{name}-dark.svg">
  <img alt="{title}: images per second and cores" src="plots/{name}-light.svg">
</picture>
"""


class Mixed(Exception):
    """The parts are of different code or machines; the message says which."""


class Contender(NamedTuple):
    """One row of the figures; if they are nan, `why`."""

    name: str
    rate: float = math.nan
    """Images per second."""
    wait: float = math.nan
    """Percent of the time."""
    cores: float = math.nan
    """Kept busy."""
    needed: float = math.nan
    """Cores that keep one GPU busy."""
    why: str = ""


def write_page(results: Mapping[str, Result], folder: Path) -> tuple[Path, list[Verdict]]:
    """Write FOLDER/gpu-NAME.md, named after the GPU, and its picture. Raises Mixed."""
    refuse_mixture(list(results.values()))
    name = page_name(next(iter(results.values())).origin)
    rounds, verdicts = rounds_of(results), judge(results)
    found = {m: [contender(rounds, name, m) for name in (OURS, *PEERS)] for m in MODELS}
    plots, path = folder / "plots", folder / f"{name}.md"
    plots.mkdir(parents=True, exist_ok=True)
    draw(rounds, found, plots / name)
    path.write_text(_page(name, results, verdicts, found), encoding="utf-8")
    return path, verdicts


def page_name(origin: Origin) -> str:
    """`gpu-h200` for an NVIDIA H200; `gpu` for a dry run."""
    if origin.device != "cuda":
        return "gpu"
    gpu = origin.machine.partition(",")[0].removeprefix("NVIDIA ")
    return "gpu-" + re.sub("[^a-z0-9]+", "-", gpu.lower()).strip("-")


def refuse_mixture(results: Sequence[Result]) -> None:
    """Raises Mixed if not all results are of the same code on the same kind of machine."""
    for first, other in itertools.pairwise(results):
        if different := first.origin.differences(other.origin):
            parts = f"the parts {first.part} and {other.part} differ"
            raise Mixed(f"{parts}: {'; '.join(different)}; run one of them again")


def from_memory(rounds: Rounds, model: str) -> float:
    """Images per second without waiting for input; nan if not measured."""
    try:
        rates, gains = (
            figures(rounds, f"{OURS}, {model}", k) for k in ("images_per_s", "headspace")
        )
    except NoFigures:
        return math.nan
    return statistics.median(rate * gain for rate, gain in zip(rates, gains, strict=True))


def contender(rounds: Rounds, name: str, model: str) -> Contender:
    """Its figures, medians of its rounds."""
    keys = ("images_per_s", "data_wait_pct", "cores")
    try:
        values = [figures(rounds, f"{name}, {model}", key) for key in keys]
    except NoFigures as error:
        return Contender(name, why=error.reason)
    rate, wait, cores = map(statistics.median, values)
    return Contender(name, rate, wait, cores, cores * from_memory(rounds, model) / rate)


def draw(rounds: Rounds, found: Mapping[str, Sequence[Contender]], stem: Path) -> None:
    """Bars of images/s and of the cores that keep one GPU busy, by model."""
    rows, spoken = [], []
    for model, contenders in found.items():
        rows.append(Row(model, ("", ""), (0, 0), bold=True))
        for one in contenders:
            values = [0.0 if math.isnan(value) else value for value in (one.rate, one.needed)]
            texts = (
                f"{one.rate:.0f}" if values[0] else "not measured",
                f"{one.needed:.1f}" * bool(values[1]),
            )
            rows.append(Row(one.name, texts, (values[0], values[1])))
            spoken.append(f"{model}, {one.name}: {texts[0]}")
        most = from_memory(rounds, model)
        if math.isfinite(most):
            rows.append(Row("input from memory", (f"{most:.0f}", ""), (most, 0)))
    titles = (
        f"images/s on {CORES} cores (more is better)",
        "cores that keep one GPU busy (less is better)",
    )
    write_bars(stem, titles, rows, "; ".join(spoken))


def _page(
    name: str,
    results: Mapping[str, Result],
    verdicts: Sequence[Verdict],
    found: Mapping[str, Sequence[Contender]],
) -> str:
    origins = [result.origin for result in results.values()]
    head = ["model", "input", "images/s", "data wait, %", "cores busy", "cores for one GPU"]
    rows = [
        [model, _cell(c.why), *[""] * 4] if c.why else [model, c.name, f"{c.rate:.0f}", *c[2:-1]]
        for model, contenders in found.items()
        for c in contenders
    ]
    picture = PICTURE.format(name=name, title=TITLE)
    lines = [f"# {TITLE}\n", picture, measure.table(head, rows), f"{METHOD}\n"]
    if any(origin.device != "cuda" for origin in origins):
        lines.insert(1, "A dry run on a CPU: its figures and verdicts say nothing about a GPU.\n")
    promises = [[v.promise, f"**{v.word}**", _cell(v.reason)] for v in verdicts]
    lines += [f"`make figures ONLY=gpu`; {_origin(origins)}.\n", "## Promises\n"]
    lines += [measure.table(["promise", "verdict", "found"], promises)]
    lines += ["## Runs\n", _runs(results), "## Machine\n", _machine(results)]
    return "\n".join(lines)


def _origin(origins: Sequence[Origin]) -> str:
    first = origins[0]
    state = {True: ", with changes", False: "", None: ", perhaps with changes"}[first.dirty]
    dates = " to ".join(sorted({min(o.date for o in origins), max(o.date for o in origins)}))
    code = f"commit {first.commit}{state}, files {first.files}"
    return f"{code}; {first.machine}; torch {first.torch}; {dates}"


def _runs(results: Mapping[str, Result]) -> str:
    """How each case ended, how long it took, its steps, and the GPU's clock and temperature."""
    rows = []
    keys = ("images_per_s", "data_wait_ms_p99", "step_ms_p50", "step_ms_p99")
    for part in PARTS:
        for one in results[part].outcomes if part in results else ():
            ended = f"exit code {one.code}" if one.ended == ENDED else one.ended
            ended += f": {_cell(one.why)}" if one.why else ""
            values = [one.values.get(key, "") for key in keys]
            name, took = f"{one.case}, {one.round}", f"{one.seconds:.0f} ({one.estimate:.0f})"
            rows.append([part, name, ended, took, *values, _clocks(one)])
    steps = ["images/s", "data wait p99, ms", "step p50, ms", "step p99, ms"]
    head = ["part", "case, round", "ended", "seconds (estimate)", *steps, "MHz/°C"]
    return measure.table(head, rows)


def _clocks(one: Outcome) -> str:
    return ", ".join(f"{c['MHz']:.0f}/{c.get('C', 0):.0f}" for c in one.clocks if "MHz" in c)


def _machine(results: Mapping[str, Result]) -> str:
    facts = {name: text for result in results.values() for name, text in result.facts.items()}
    lacks = {name: text for result in results.values() for name, text in result.lacks.items()}
    rows = [*facts.items(), *((f"lacks {name}", _cell(lack)) for name, lack in lacks.items())]
    return measure.table(["", ""], rows)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
