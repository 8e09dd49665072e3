"""Judges what the check on a GPU measured, and writes docs/results/gpu-NAME.md.

A promise is broken only by what was measured: a figure, or a process that failed by itself. What
was cut off or skipped is not measured.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from entry_point.job.own_code import content_hash
from entry_point.job.program import UserError
from launch.revision import ROOT, commit

SOURCES = ("benchmarks", "configs", "custom_op", "entry_point", "project", "requirements", "tests")
ROUNDS = 3
"""Contenders that are judged by 2 % alternate this many times."""
PEER_CORES, CORES = 4, 8
RECIPES = ("resnet50_torchvision", "resnet50_fast16", "deit_small", "vit_small")
"""`imagefolder_resnet50` trains as the goal does, and `resnet50_fast88` as fast16."""
HOW = ("eager", "compiled")
GOAL, COMPILED = (f"ResNet-50, {how}" for how in HOW)
PEERS = {
    f"ResNet-50, fed by {peer}": peer
    for peer in ("dali-gpu", "dali-cpu", "torchcodec", "torchvision")
}
OPTION, NO_OPTION = "option: ", "option: none"
TESTS, SERVING = "tests marked gpu", "serving"
ENDED, CUT_OFF, SKIPPED = "exit code 0", "cut off", "skipped"
HELD, BROKEN = "held", "broken"
NOT_MEASURED, NOT_DECIDED = "not measured", "not decided"
STUDENT_T = {2: 12.71, 3: 4.303}
"""Number of values -> factor of the 95 % interval of their mean."""
WORTH = 1.01
"""An option pays if it is more than this many times as fast."""
LOSSES_DIFFER = 0.03
"""The most by which a compiled run's loss, over ten steps, may differ from the eager one's."""
STABLE = 1.1
"""An eager run whose loss rises to this many times its first value amplifies each rounding."""
HEAD = (
    *("case", "images/s", "compiled / eager", "from memory", "data wait %", "step p50 ms"),
    *("step p99 ms", "cores busy", "cores for one GPU", "ended", "seconds (estimate)"),
)
METHOD = f"""\
Real jobs in bf16 with batches of 256: 12800 JPEGs of 533x800 pixels (48 photographs, repeated),
packed with side indexes. Figures leave out the first epoch, in which kernels are chosen and
compiled. ResNet-50 at 224 pixels runs in {ROUNDS} alternating rounds. Recipes have their own model,
image size and augmentation; their losses are those of the first 50 steps, over ten steps each.
Eager ResNet-50 and other loaders have {PEER_CORES} cores, all others {CORES}. Other loaders read
plain files: DALI with its own reader and random crop, torchvision and torchcodec with ImageFolder
and torch's DataLoader. DALI's own CI asks 19,000 images/s of the same operator, on a Hopper GPU
with 70 threads. `From memory` is a last epoch on batches kept in memory. `Cores busy` are CPU
seconds of the job's processes per second. `Cores for one GPU` are the same, scaled to the speed
from memory; decoding on the GPU takes time from the model, which more cores do not give back.
A promise holds or breaks if all of the 95 % interval of {ROUNDS} values does. Options change the
compiled ResNet-50, and alternate with it; one pays if all of that interval is above {WORTH}.
"""


@dataclass
class Outcome:
    """The end of a round of a case, and its measurements."""

    case: str
    round: int
    estimate: float
    """Seconds."""
    ended: str = ENDED
    """The exit code if it ended by itself, CUT_OFF or SKIPPED."""
    why: str = ""
    seconds: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    """For a job: by key, a value per epoch after the first, and the losses of the first."""

    def __str__(self) -> str:
        return f"{self.ended}: {self.why}" if self.why else self.ended


@dataclass
class Result:
    """The measurements of a part, of which code, and where; stored in PART.json."""

    part: str
    files: str
    """`sources_hash` of what was measured."""
    machine: str
    gpu: str
    """Empty in a dry run."""
    date: str
    system: str
    outcomes: list[Outcome] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1)
        (folder / f"{self.part}.json").write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Result:
        content = json.loads(file.read_text(encoding="utf-8"))
        return cls(**content | {"outcomes": [Outcome(**one) for one in content["outcomes"]]})


Results = Mapping[str, Result]
"""Results by part."""
Cases = Mapping[str, Sequence[Outcome]]
"""Case -> its rounds."""
Judged = tuple[str, str]
"""HELD, BROKEN, NOT_MEASURED or NOT_DECIDED, and the reason."""


class NoFigures(Exception):
    """There is nothing to judge by. Its arguments are those of Judged."""


def sources_hash() -> str:
    """Returns 16 hexadecimal digits for the files that are measured, whatever git says."""
    files = [path for top in SOURCES for path in (ROOT / top).rglob("*") if path.is_file()]
    measured = {f.relative_to(ROOT).as_posix(): f.read_bytes() for f in files if f.suffix != ".pyc"}
    return content_hash(measured)


# -- verdicts


def promises() -> Iterator[tuple[str, str, Callable[[Cases], Judged]]]:
    """Yields the part, the promise, and the function that judges it."""
    yield "tests", "The tests marked `gpu` pass", partial(passes, TESTS)
    for model in ("ResNet-50", *RECIPES):
        yield "tests", f"{model} compiles", partial(passes, f"{model}, compiles")
    waits = "waits for less than 1 %"
    for case, cores in ((GOAL, PEER_CORES), (COMPILED, CORES)):
        memory = f"{case}: at most 2 % slower than from memory"
        even = f"{case}: the 99th percentile of steps is at most 1.2 of the 50th"
        yield "goal", f"{case}, {cores} cores: {waits}", partial(at_most, 1, case, "data_wait_pct")
        yield "goal", memory, partial(at_most, 1.02, case, "headspace")
        yield "goal", even, partial(at_most, 1.2, case, "step_ms_p99", base=case)
    faster = partial(at_most, 1 / 1.2, COMPILED, "step_ms_p50", base=GOAL)
    yield "goal", f"{COMPILED}: steps are 1.2 times as fast", faster
    for recipe in RECIPES:
        for case in (f"{recipe}, {how}" for how in HOW):
            yield "recipes", f"{case}: {waits}", partial(at_most, 1, case, "data_wait_pct")
        equal = f"compiled losses equal the eager ones within {LOSSES_DIFFER:.0%}"
        yield "recipes", f"{recipe}: {equal}", partial(learns_alike, recipe)
    yield "serving", "Concurrent requests share batches", shares_batches


def judge(results: Results) -> list[tuple[str, str, str]]:
    """Returns each promise of the parts that have run, its verdict, and the reason."""
    cases, verdicts = by_case(results), []
    for part, promise, judged in promises():
        if part in results:
            try:
                verdicts.append((promise, *judged(cases)))
            except NoFigures as error:
                verdicts.append((promise, *error.args))
    return verdicts


def by_case(results: Results) -> Cases:
    found: dict[str, list[Outcome]] = {}
    for outcome in itertools.chain.from_iterable(one.outcomes for one in results.values()):
        found.setdefault(outcome.case, []).append(outcome)
    return found


def rounds_of(cases: Cases, case: str) -> Sequence[Outcome]:
    """Returns the case's rounds. Raises NoFigures if one failed, did not end, or none has run."""
    rounds = cases.get(case, ())
    if not rounds:
        raise NoFigures(NOT_MEASURED, f"{case}: has not run")
    for word, unmeasured in ((BROKEN, False), (NOT_MEASURED, True)):
        for one in rounds:
            if one.ended != ENDED and (one.ended in (CUT_OFF, SKIPPED)) == unmeasured:
                raise NoFigures(word, f"{case}, round {one.round}: {one}")
    return rounds


def figures(cases: Cases, case: str, key: str) -> list[float]:
    """Returns the median of each round, or all values of a single round. Raises NoFigures."""
    rounds = [one.values.get(key) or [math.nan] for one in rounds_of(cases, case)]
    values = rounds[0] if len(rounds) == 1 else list(map(statistics.median, rounds))
    if not all(map(math.isfinite, values)):
        raise NoFigures(NOT_MEASURED, f"{case}: {key} is missing or not a number")
    return values


def at_most(most: float, case: str, key: str, cases: Cases, *, base: str = "") -> Judged:
    """Judges the mean of ROUNDS values by its 95 % interval. With `base`, the values are shares of
    the median step of that case's same round."""
    values = figures(cases, case, key)
    if base:
        try:
            steps = figures(cases, base, "step_ms_p50")
        except NoFigures as error:  # the failure of `base` breaks its own promises
            return NOT_MEASURED, f"no comparison: {error.args[1]}"
        values = [a / b for a, b in zip(values, steps, strict=False)]
    if len(values) < ROUNDS:
        return NOT_MEASURED, f"{len(values)} of {ROUNDS} values were measured"
    mean, half = _interval(values)
    word = HELD if mean + half <= most else BROKEN if mean - half > most else NOT_DECIDED
    return word, f"{mean:.4g} ± {half:.2g}; at most {most:.3g}"


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean, and half the width of its 95 % interval."""
    quantile = STUDENT_T[len(values)]
    return statistics.mean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def learns_alike(recipe: str, cases: Cases) -> Judged:
    """Judges whether a recipe learns compiled as it does eagerly."""
    eager, compiled = (figures(cases, f"{recipe}, {how}", "losses") for how in HOW)
    differences = [abs(b / a - 1) for a, b in zip(eager, compiled, strict=True)]
    if max(eager) > STABLE * eager[0]:
        first = f"{differences[0]:.2%} in the first ten steps; then"
        return NOT_DECIDED, f"{first} the eager loss rises to {max(eager):.4g}: not comparable"
    found = f"{max(differences):.2%} at most, from {eager[0]:.4g} to {eager[-1]:.4g}"
    return (HELD if max(differences) <= LOSSES_DIFFER else BROKEN), found


def passes(case: str, cases: Cases) -> Judged:
    """Judges a process that measures nothing; of a test run, whether a test has passed."""
    (one,) = rounds_of(cases, case)
    word = HELD if one.values.get("passed", True) else NOT_MEASURED
    return word, one.values.get("said", f"{one}, {one.seconds:.0f} s")


def shares_batches(cases: Cases) -> Judged:
    (one,) = rounds_of(cases, SERVING)
    times = one.values["times one client"]
    return (HELD if times > 1 else BROKEN), f"{times:.3g} times one client; {one.values['speed']}"


def report(results: Results) -> int:
    """Prints the verdicts; returns 1 if one is BROKEN, else 0."""
    verdicts = judge(results)
    for promise, word, reason in verdicts:
        shown = word.upper() if word == BROKEN else word
        sys.stdout.write(f"{shown:12}  {promise}: {reason}\n")
    counts = Counter(word for _, word, _ in verdicts)
    sys.stdout.write(f"{', '.join(f'{count} {word}' for word, count in counts.items())}\n")
    return int(BROKEN in counts)


# -- the page


def write_page(results: Results, folder: Path) -> int:
    """Writes gpu-NAME.md, named after the GPU; a dry run's into `folder`.

    Without the goal it is gpu-NAME-PART.md: it does not replace a page with all figures. Returns
    the exit code. Raises UserError if the parts are of different code or machines.
    """
    for one, other in itertools.pairwise(results.values()):
        for key in ("files", "machine", "gpu"):
            values = getattr(one, key), getattr(other, key)
            if values[0] != values[1]:
                parts, differ = f"{one.part} and {other.part} differ", " and ".join(values)
                raise UserError(f"the parts {parts}: {key} {differ}; run one again")
    first = next(iter(results.values()))
    words = re.findall("[a-z0-9]+", first.gpu.lower().removeprefix("nvidia"))
    others = [] if "goal" in results else [part for part in results if part != "tests"]
    path = (measure.RESULTS if first.gpu else folder) / f"{'-'.join(['gpu', *words, *others])}.md"
    known = sources_hash() == first.files
    code = f"commit {commit()}" if known else "which this clone no longer has"
    made = f"files {first.files}, {code}; {first.machine}; {first.system}; {first.date}"
    rows = [(promise, f"**{word}**", reason) for promise, word, reason in judge(results)]
    cases = by_case(results)
    measure.write_page(
        path,
        "Training on a GPU",
        "" if first.gpu else "A dry run: it says nothing about a GPU.",
        _figures(cases),
        METHOD,
        f"`make figures ONLY=gpu`; {made}.",
        _options(cases),
        "## Promises",
        measure.table(["promise", "verdict", "found"], rows),
    )
    exit_code = report(results)
    sys.stdout.write(f"{path}\n")
    return exit_code


def _figures(cases: Cases) -> str:
    """Returns the table of the cases: medians over the rounds, how they ended, and how long they
    took."""

    def median(case: str, key: str) -> float:
        try:
            return statistics.median(figures(cases, case, key))
        except NoFigures:
            return math.nan

    rows = []
    for case, rounds in cases.items():
        rate, busy = median(case, "images_per_s"), median(case, "cores")
        eager = case.replace("compiled", "eager")
        gain = rate / median(eager, "images_per_s") if eager != case else math.nan
        whole = GOAL if case in PEERS else case
        memory = median(whole, "images_per_s") * median(whole, "headspace")
        steps = [median(case, key) for key in ("data_wait_pct", "step_ms_p50", "step_ms_p99")]
        values = [rate, gain, memory, *steps, busy, busy / rate * memory]
        shown = ["" if math.isnan(value) else f"{value:.4g}" for value in values]
        ends = "; ".join(sorted({str(one) for one in rounds}))
        seconds = " ".join(f"{one.seconds:.0f}" for one in rounds)
        rows.append([case, *shown, ends, f"{seconds} ({rounds[0].estimate:.0f})"])
    return measure.table(HEAD, rows)


def _options(cases: Cases) -> str:
    """Returns the section that compares each option with none, round by round; empty without."""

    def speeds(option: str) -> dict[int, float]:
        rounds = [one for one in cases[option] if one.ended == ENDED]
        found = {one.round: one.values.get("images_per_s") for one in rounds}
        return {number: statistics.median(values) for number, values in found.items() if values}

    options = [case for case in cases if case.startswith(OPTION)]
    rows: list[list[object]] = []
    for option in options:
        found, base = speeds(option), speeds(NO_OPTION)
        shares = [found[number] / base[number] for number in found if number in base]
        cells = ["", "", NOT_MEASURED]
        if len(shares) > 1:
            mean, half = _interval(shares)
            pays = "yes" if mean - half > WORTH else "no" if mean + half < WORTH else NOT_DECIDED
            cells = [f"{statistics.median(found.values()):.4g}", f"{mean:.3f} ± {half:.2g}", pays]
        rows.append([option.removeprefix(OPTION), len(shares), *cells])
    head = ["option", "rounds", "images/s", "of those of none", "pays"]
    return f"## Options\n\n{measure.table(head, rows)}" if options else ""
