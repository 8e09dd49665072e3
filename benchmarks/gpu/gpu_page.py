"""Judges what the check on a GPU measured, and writes docs/results/gpu-NAME.md.

A promise is broken only by what was measured: a figure, or a process that failed by itself. What
was cut off or skipped is not measured.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("benchmarks", "configs", "custom_op", "entry_point", "project", "tests")
SUFFIXES = (".py", ".cpp", ".h", ".yaml")

ROUNDS = 3
"""Contenders that are judged by 2 % alternate this many times."""
PEER_CORES, CORES = 4, 8
RECIPES = ("resnet50_torchvision", "resnet50_fast16", "deit_small", "vit_small")
"""`imagefolder_resnet50` trains as the goal does, and `resnet50_fast88` as fast16."""
HOW = ("eager", "compiled")
GOAL, COMPILED = (f"ResNet-50, {how}" for how in HOW)
PEERS = ("dali-gpu", "dali-cpu", "torchvision")
PEER_CASES = {f"ResNet-50, fed by {peer}": peer for peer in PEERS}
TESTS, SERVING = "tests marked gpu", "serving"
ENDED, CUT_OFF, SKIPPED = "ended", "cut off", "skipped"
HELD, BROKEN = "held", "broken"
NOT_MEASURED, NOT_DECIDED = "not measured", "not decided"
STUDENT_T = 4.303
"""For the 95 % interval of a mean of ROUNDS values."""
LOSSES_DIFFER = 0.03
"""The most by which a compiled run's loss, over ten steps, may differ from the eager one's."""
STABLE = 1.1
"""An eager run whose loss rises to this many times its first value amplifies each rounding."""
METHOD = f"""\
Real jobs in bf16 with batches of 256: 12800 JPEGs of 533x800 pixels (48 photographs, repeated),
packed with side indexes. Figures leave out the first epoch, in which kernels are chosen and
compiled. ResNet-50 at 224 pixels runs in {ROUNDS} alternating rounds. Recipes have their own model,
image size and augmentation; their losses are those of the first 50 steps, over ten steps each.
Eager ResNet-50 and other loaders have {PEER_CORES} cores, all others {CORES}. Other loaders read
plain files: DALI with its own reader and random crop, torchvision with ImageFolder and torch's
DataLoader. `From memory` repeats the first epoch's steps on batches kept in memory. `Cores busy`
are CPU seconds of the job's processes per second. `Cores for one GPU` are the same, scaled to the
speed from memory; decoding on the GPU takes time from the model, which more cores do not give back.
A promise holds or breaks if all of the 95 % interval of {ROUNDS} values does.
"""


@dataclass
class Outcome:
    """How a case ended, and what it measured."""

    case: str
    round: int
    estimate: float
    """Seconds."""
    ended: str = ENDED
    seconds: float = 0.0
    code: int | None = None
    """Exit code, if it ended by itself; below 0: by a signal that the check did not send."""
    why: str = ""
    """Why it was skipped, cut off or failed."""
    values: dict[str, Any] = field(default_factory=dict)
    """Of a job: by key, a value per epoch after the first, and the losses of the first."""

    @property
    def end(self) -> str:
        """How it ended, for people."""
        how = f"exit code {self.code}" if self.ended == ENDED else self.ended
        return f"{how}: {self.why}" if self.why else how


Results = Mapping[str, Mapping[str, Any]]
"""Part -> the content of its file."""
Cases = Mapping[str, Sequence[Outcome]]
"""Case -> its rounds."""
Judged = tuple[str, str]
"""Word and reason."""


class Verdict(NamedTuple):
    promise: str
    word: str
    """HELD, BROKEN, NOT_MEASURED or NOT_DECIDED."""
    reason: str


class NoFigures(Exception):
    """There is nothing to judge by. Its arguments are the verdict's word and reason."""


# -- verdicts


def judge(results: Results) -> list[Verdict]:
    """Returns a verdict for each promise of the parts that have run."""
    cases, verdicts = by_case(results), []
    for part, promise, judged, *of in promises():
        if part in results:
            try:
                word, reason = judged(cases, *of)
            except NoFigures as error:
                word, reason = error.args
            verdicts.append(Verdict(promise, word, reason))
    return verdicts


def promises() -> Iterator[tuple[Any, ...]]:
    """Yields the part, the promise, the function that judges it, and its arguments."""
    yield "tests", "The tests marked `gpu` pass", tests_pass
    for model in ("ResNet-50", *RECIPES):
        yield "tests", f"{model} compiles", compiles, f"{model}, compiles"
    for case, cores in ((GOAL, PEER_CORES), (COMPILED, CORES)):
        waits, memory = "waits for less than 1 %", "at most 2 % slower than from memory"
        even = "the 99th percentile of steps is at most 1.2 of the 50th"
        yield "goal", f"{case}, {cores} cores: {waits}", below, case, "data_wait_pct", 1
        yield "goal", f"{case}: {memory}", below, case, "headspace", 1.02
        yield "goal", f"{case}: {even}", ratio_below, case, "step_ms_p99", case, 1.2
    faster = f"{COMPILED}: steps are 1.2 times as fast"
    yield "goal", faster, ratio_below, COMPILED, "step_ms_p50", GOAL, 1 / 1.2
    for recipe in RECIPES:
        for case in (f"{recipe}, {how}" for how in HOW):
            yield "recipes", f"{case}: waits for less than 1 %", below, case, "data_wait_pct", 1
        equal = f"compiled losses equal the eager ones within {LOSSES_DIFFER:.0%}"
        yield "recipes", f"{recipe}: {equal}", losses_are_equal, recipe
    yield "serving", "Concurrent requests share batches", requests_share_batches


def by_case(results: Results) -> Cases:
    """Returns the outcomes by case."""
    found: dict[str, list[Outcome]] = {}
    for result in results.values():
        for one in result["outcomes"]:
            found.setdefault(one["case"], []).append(Outcome(**one))
    return found


def ended(cases: Cases, case: str) -> Sequence[Outcome]:
    """Returns the case's rounds. Raises NoFigures if one failed, did not end, or none has run."""
    rounds = cases.get(case, ())
    if not rounds:
        raise NoFigures(NOT_MEASURED, f"{case}: has not run")
    for one in rounds:
        if one.code:
            raise NoFigures(BROKEN, f"{case}, round {one.round}: {one.end}")
    for one in rounds:
        if one.ended != ENDED:
            raise NoFigures(NOT_MEASURED, f"{case}, round {one.round}: {one.end}")
    return rounds


def figures(cases: Cases, case: str, key: str) -> list[float]:
    """Returns the median of each round, or all values of a single round. Raises NoFigures."""
    rounds = [one.values.get(key) or [math.nan] for one in ended(cases, case)]
    values = rounds[0] if len(rounds) == 1 else list(map(statistics.median, rounds))
    if not all(map(math.isfinite, values)):
        raise NoFigures(NOT_MEASURED, f"{case}: {key} is missing or not a number")
    return values


def at_most(values: Sequence[float], most: float) -> Judged:
    """Judges the mean of ROUNDS values by its 95 % interval."""
    if len(values) < ROUNDS:
        return NOT_MEASURED, f"{len(values)} of {ROUNDS} values were measured"
    mean = statistics.mean(values)
    half = STUDENT_T * statistics.stdev(values) / math.sqrt(ROUNDS)
    found = f"{mean:.4g} ± {half:.2g}; at most {most:.3g}"
    if mean + half <= most:
        return HELD, found
    return (BROKEN if mean - half > most else NOT_DECIDED), found


def below(cases: Cases, case: str, key: str, most: float) -> Judged:
    """Judges the case's values."""
    return at_most(figures(cases, case, key), most)


def ratio_below(cases: Cases, case: str, key: str, base: str, most: float) -> Judged:
    """Judges the case's values over the median step of the same round of `base`."""
    values = figures(cases, case, key)
    try:
        steps = figures(cases, base, "step_ms_p50")
    except NoFigures as error:  # the failure of `base` breaks its own promises
        return NOT_MEASURED, f"no comparison: {error.args[1]}"
    return at_most([a / b for a, b in zip(values, steps, strict=False)], most)


def losses_are_equal(cases: Cases, recipe: str) -> Judged:
    """Judges whether a recipe learns compiled as it does eagerly."""
    eager, compiled = (figures(cases, f"{recipe}, {how}", "losses") for how in HOW)
    differences = [abs(b / a - 1) for a, b in zip(eager, compiled, strict=True)]
    if max(eager) > STABLE * eager[0]:
        first = f"{differences[0]:.2%} in the first ten steps; then"
        return NOT_DECIDED, f"{first} the eager loss rises to {max(eager):.4g}: not comparable"
    found = f"{max(differences):.2%} at most, from {eager[0]:.4g} to {eager[-1]:.4g}"
    return (HELD if max(differences) <= LOSSES_DIFFER else BROKEN), found


def compiles(cases: Cases, case: str) -> Judged:
    (one,) = ended(cases, case)
    return HELD, f"{one.end}, {one.seconds:.0f} s"


def tests_pass(cases: Cases) -> Judged:
    (one,) = ended(cases, TESTS)
    return (HELD if one.values["passed"] else NOT_MEASURED), one.values["said"]


def requests_share_batches(cases: Cases) -> Judged:
    (one,) = ended(cases, SERVING)
    images = one.values["images per batch"]
    return (HELD if images > 1 else BROKEN), f"{images:.3g} images a batch; {one.values['speed']}"


def report(verdicts: Sequence[Verdict]) -> int:
    """Prints the verdicts; returns the exit code."""
    for verdict in verdicts:
        word = verdict.word.upper() if verdict.word == BROKEN else verdict.word
        sys.stdout.write(f"{word:12}  {verdict.promise}: {verdict.reason}\n")
    counts = Counter(verdict.word for verdict in verdicts)
    sys.stdout.write(f"{', '.join(f'{count} {word}' for word, count in counts.items())}\n")
    return int(BROKEN in counts)


# -- the page


def write_page(results: Results, folder: Path) -> int:
    """Writes gpu-NAME.md, named after the GPU; a dry run's into `folder`.

    Without the goal it is gpu-NAME-PART.md: it does not replace a page with all figures. Returns
    the exit code. Raises ValueError if the parts are of different code or machines.
    """
    for first, other in itertools.pairwise(results.values()):
        for key in ("files", "machine", "device"):
            if first[key] != other[key]:
                parts = f"the parts {first['part']} and {other['part']} differ"
                raise ValueError(f"{parts}: {key} {first[key]} and {other[key]}; run one again")
    first = next(iter(results.values()))
    name, target, dry = "gpu", folder, "A dry run: it says nothing about a GPU.\n\n"
    if first["device"] == "cuda":
        gpu = first["machine"].partition(",")[0].removeprefix("NVIDIA ")
        name = f"gpu-{re.sub('[^a-z0-9]+', '-', gpu.lower()).strip('-')}"
        target, dry = measure.RESULTS, ""
    if "goal" not in results:
        name = "-".join([name, *(part for part in results if part != "tests")])
    verdicts = judge(results)
    rows = [(one.promise, f"**{one.word}**", _cell(one.reason)) for one in verdicts]
    made = f"{commit_of(first['files'])}; {first['machine']}; {first['system']}; {first['date']}"
    path = target / f"{name}.md"
    path.write_text(
        f"# Training on a GPU\n\n{dry}{_figures(by_case(results))}\n{METHOD}\n"
        f"`make figures ONLY=gpu`; {made}.\n\n## Promises\n\n"
        + measure.table(["promise", "verdict", "found"], rows),
        encoding="utf-8",
    )
    code = report(verdicts)
    sys.stdout.write(f"{path}\n")
    return code


def _figures(cases: Cases) -> str:
    """The table of the cases: medians over the rounds, how they ended, and how long they took."""

    def median(case: str, key: str) -> float:
        try:
            return statistics.median(figures(cases, case, key))
        except NoFigures:
            return math.nan

    rows = []
    for case, rounds in cases.items():
        rate, busy = median(case, "images_per_s"), median(case, "cores")
        compared = rate / median(case.replace("compiled", "eager"), "images_per_s")
        gain = compared if case.endswith("compiled") else math.nan
        whole = GOAL if case in PEER_CASES else case
        memory = median(whole, "images_per_s") * median(whole, "headspace")
        steps = [median(case, key) for key in ("data_wait_pct", "step_ms_p50", "step_ms_p99")]
        values = [rate, gain, memory, *steps, busy, busy / rate * memory]
        shown = ["" if math.isnan(value) else f"{value:.4g}" for value in values]
        ends = "; ".join(sorted({one.end for one in rounds}))
        seconds = " ".join(f"{one.seconds:.0f}" for one in rounds)
        rows.append([case, *shown, _cell(ends), f"{seconds} ({rounds[0].estimate:.0f})"])
    head = "case, images/s, compiled / eager, from memory, data wait %, step p50 ms, step p99 ms"
    head += ", cores busy, cores for one GPU, ended, seconds (estimate)"
    return measure.table(head.split(", "), rows)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


# -- which code was measured


def source_hash(root: Path = ROOT) -> str:
    """Returns a hash of the source files: a GPU machine may have no repository."""
    found = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        if path.suffix in SUFFIXES:
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def commit_of(files: str, root: Path = ROOT) -> str:
    """Returns the commit of the clone that writes the page, if it has the files of this hash."""
    if source_hash(root) != files:
        return f"files {files}, which this clone no longer has"
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True)
        changed = subprocess.check_output([*git, "status", "--porcelain", *SOURCES])
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository
        return f"files {files}"
    return f"commit {commit.strip()}{', with changes' if changed else ''}, files {files}"
