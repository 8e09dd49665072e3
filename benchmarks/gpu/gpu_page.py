"""Judges what the check measured, and writes docs/results/gpu-NAME.md with its picture.

A promise is broken only by what was measured: a figure, or a process that failed by itself. What
was cut off, skipped or slowed by the GPU's heat is not measured.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure
from benchmarks.gpu.gpu_jobs import (
    COMPILED,
    CORES,
    ENDED,
    FULL,
    GOAL,
    PEER_CORES,
    PEERS,
    RECIPES,
    ROUNDS,
    SERVING,
    TESTS,
    Outcome,
)
from benchmarks.pipelines.picture import Row, write_bars

HELD, BROKEN = "held", "broken"
NOT_MEASURED, NOT_DECIDED = "not measured", "not decided"
STUDENT_T = 4.303
"""For the 95 % interval of a mean of ROUNDS values."""
LOSSES_DIFFER = 0.03
"""The most by which a compiled run's loss, over ten steps, may differ from the eager one's."""
STABLE = 1.1
"""An eager run whose loss rises to so many times its first value amplifies each rounding."""
TITLE = "Training on a GPU"
METHOD = (
    f"Real jobs in bf16 with channels_last and batches of {FULL.batch}: {FULL.images} JPEGs of "
    "533x800 pixels (48 photographs, repeated; quality 90, 4:2:0), packed with side indexes. "
    "Figures leave out the first epoch, in which kernels are chosen and compiled. ResNet-50: "
    f"RandomResizedCrop 224 and flip, {ROUNDS} alternating rounds. Recipes: their own model, image "
    "size and augmentation; the losses of the first 50 steps, over ten steps each, are compared. "
    f"Eager ResNet-50 and other loaders have {PEER_CORES} cores, compiled jobs and recipes {CORES}."
    " Those read plain files: DALI with its reader, random crop and prefetch, torchvision with "
    "ImageFolder, its transforms and torch's DataLoader. Input from memory: the first epoch's "
    "settled steps, repeated on batches kept in memory. Cores busy: CPU seconds of the job's "
    "processes per second. Cores that keep one GPU busy: the same, scaled to the speed of input "
    "from memory; what DALI decodes on the GPU takes time from the model, which more cores do not "
    f"give back. Promises hold or break if all of the 95 % interval of {ROUNDS} values does."
)
PICTURE = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="plots/{name}-dark.svg">
  <img alt="{title}: images per second and cores" src="plots/{name}-light.svg">
</picture>
"""
Results = Mapping[str, Mapping[str, Any]]
"""Part -> what `run_part` returned."""
Judged = tuple[str, str]
"""Word and reason."""
Promise = Callable[[Results], Judged]


class Verdict(NamedTuple):
    part: str
    promise: str
    word: str
    """HELD, BROKEN, NOT_MEASURED or NOT_DECIDED."""
    reason: str


class NoFigures(Exception):
    """There is nothing to judge by; has the word and the reason."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(word, reason)
        self.word, self.reason = word, reason


# -- verdicts


def judge(results: Results) -> list[Verdict]:
    """Returns a verdict per promise, the parts by worth."""
    found = []
    for part, promises in {**PROMISES, "recipes": recipe_promises(results)}.items():
        for promise, judged in promises:
            try:
                word, reason = judged(results)
            except NoFigures as error:
                word, reason = error.word, error.reason
            found.append(Verdict(part, promise, word, reason))
    return found


def outcomes_of(results: Results, case: str) -> list[Outcome]:
    """Returns the case's rounds.

    Raises NoFigures if one failed, did not end, was slowed by heat, or is missing.
    """
    every = [Outcome(**one) for result in results.values() for one in result["outcomes"]]
    found = sorted(
        (one for one in every if one.case == case), key=lambda one: one.code in (0, None)
    )
    for one in found:
        where = f"{case}, round {one.round}"
        if one.code:
            raise NoFigures(BROKEN, f"{where}: exit code {one.code}: {one.why}")
        if one.ended != ENDED:
            raise NoFigures(NOT_MEASURED, f"{where}: {one.ended}: {one.why}")
        if any(clock.get("slowed") for clock in one.clocks):
            raise NoFigures(NOT_MEASURED, f"{where}: the GPU slowed itself for heat")
    if not found:
        raise NoFigures(NOT_MEASURED, f"{case}: has not run")
    return found


def figures(results: Results, case: str, key: str) -> list[float]:
    """Returns the median of each round, or of a single round all values. Raises NoFigures."""
    rounds = [one.values.get(key, []) for one in outcomes_of(results, case)]
    values = rounds[0] if len(rounds) == 1 else [statistics.median(r or [math.nan]) for r in rounds]
    if not values or not all(map(math.isfinite, values)):
        raise NoFigures(NOT_MEASURED, f"{case}: {key} is missing or not a number")
    return [float(value) for value in values]


def at_most(values: Sequence[float], most: float) -> Judged:
    """Judges the mean of ROUNDS values by its 95 % interval."""
    if len(values) < ROUNDS:
        return NOT_MEASURED, f"{len(values)} of {ROUNDS} values were measured"
    mean = statistics.mean(values)
    half = STUDENT_T * statistics.stdev(values) / math.sqrt(ROUNDS)
    found = f"{mean:.4g} ± {half:.2g}; at most {most:g}"
    if mean + half <= most:
        return HELD, found
    return (BROKEN if mean - half > most else NOT_DECIDED), found


def below(case: str, key: str, most: float, *, per: str = "", base: str = "") -> Promise:
    """`key` is at most `most`; or it divided by `per`, or by the base's in the same round."""

    def judged(results: Results) -> Judged:
        values = figures(results, case, key)
        if not per and not base:
            return at_most(values, most)
        try:
            divisors = figures(results, base or case, per or key)
        except NoFigures as error:
            raise NoFigures(NOT_MEASURED, f"no comparison: {error.reason}") from None
        return at_most([a / b for a, b in zip(values, divisors, strict=False)], most)

    return judged


def waits_little(case: str) -> Promise:
    """The job waits for data for less than 1 % of each ten steps, in the middle of an epoch's."""

    def judged(results: Results) -> Judged:
        (one,) = outcomes_of(results, case)
        waits, epochs = one.values["data_wait_pct"], ROUNDS
        per = max(1, len(waits) // epochs)
        return at_most(
            [statistics.median(waits[i * per : (i + 1) * per]) for i in range(epochs)], 1
        )

    return judged


def same_losses(recipe: str) -> Promise:
    """Compiled, a recipe learns as it does eagerly."""

    def judged(results: Results) -> Judged:
        eager, compiled = (figures_of_first_epoch(results, recipe, how) for how in HOW)
        differences = [abs(b / a - 1) for a, b in zip(eager, compiled, strict=True)]
        found = f"{max(differences):.2%} at most, from {eager[0]:.4g} to {eager[-1]:.4g}"
        if max(eager) > STABLE * eager[0]:
            first = f"{differences[0]:.2%} in the first ten steps; then"
            return NOT_DECIDED, f"{first} the eager loss rises to {max(eager):.4g}: not comparable"
        return (HELD if max(differences) <= LOSSES_DIFFER else BROKEN), found

    return judged


def figures_of_first_epoch(results: Results, recipe: str, how: str) -> list[float]:
    (one,) = outcomes_of(results, f"{recipe}, {how}")
    return [float(loss) for loss in one.values["losses"]]


def runs(case: str) -> Promise:
    """The case ended well. A peer that fails breaks no promise."""

    def judged(results: Results) -> Judged:
        try:
            (one,) = outcomes_of(results, case)
        except NoFigures as error:
            ours = not case.startswith(tuple(PEERS))
            return (error.word if ours else NOT_MEASURED), error.reason
        rates = one.values.get("images_per_s")
        return HELD, f"{statistics.median(rates):.0f} images/s" if rates else "exit code 0"

    return judged


def tests_pass(results: Results) -> Judged:
    (one,) = outcomes_of(results, TESTS)
    passed, skipped = (one.values.get(key, 0) for key in ("passed", "skipped"))
    return (HELD if passed else NOT_MEASURED), f"{passed} passed, {skipped} skipped"


def answered(key: str) -> Promise:
    """The serving case says `{key: [whether it holds, what it found]}`."""

    def judged(results: Results) -> Judged:
        (one,) = outcomes_of(results, SERVING)
        holds, found = one.values.get(key, (False, "no answer"))
        return (HELD if holds else BROKEN), found

    return judged


GOAL_PART = "goal"
HOW = ("eager", "compiled")
WAIT, P50, P99 = "data_wait_pct", "step_ms_p50", "step_ms_p99"
PROMISES: dict[str, list[tuple[str, Promise]]] = {
    "tests": [
        ("The tests marked `gpu` pass", tests_pass),
        *((f"{one} compiles", runs(f"{one}, compiles")) for one in ("ResNet-50", *RECIPES)),
    ],
    GOAL_PART: [
        *(
            promise
            for case, cores in ((GOAL, PEER_CORES), (COMPILED, CORES))
            for promise in (
                (f"{case}, {cores} cores: waits for less than 1 %", below(case, WAIT, 1)),
                (f"{case}: at most 2 % slower than from memory", below(case, "headspace", 1.02)),
                (f"{case}: the 99th percentile of steps is at most 1.2 of the 50th",
                 below(case, P99, 1.2, per=P50)),
            )
        ),
        (f"{COMPILED}: steps are 1.2 times as fast", below(COMPILED, P50, 1 / 1.2, base=GOAL)),
    ],
    "peers": [(f"{peer} is measured", runs(f"{peer}, ResNet-50")) for peer in PEERS],
    "serving": [
        ("The server answers in fp32 as on the CPU", answered("fp32")),
        ("The server answers in bf16 as on the CPU", answered("bf16")),
        ("Concurrent requests share batches", answered("batches")),
    ],
}  # fmt: skip


def recipes_of(results: Results) -> Sequence[str]:
    """Returns the recipes that ran; if none did, those of the check."""
    ran = [one["case"].partition(",")[0] for one in results.get("recipes", {}).get("outcomes", ())]
    return list(dict.fromkeys(ran)) or RECIPES


def recipe_promises(results: Results) -> list[tuple[str, Promise]]:
    found: list[tuple[str, Promise]] = []
    for recipe in recipes_of(results):
        for case in (f"{recipe}, {how}" for how in HOW):
            found.append((f"{case}: waits for less than 1 %", waits_little(case)))
        same = f"{recipe}: compiled losses equal the eager ones within {LOSSES_DIFFER:.0%}"
        found.append((same, same_losses(recipe)))
    return found


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
    """Writes gpu-NAME.md, named after the GPU, and its picture; a dry run's into `folder`.

    Without the goal it is gpu-NAME-PART.md: it does not replace a page with all figures. Returns
    the exit code. Raises ValueError if the parts are of different code or machines.
    """
    for first, other in itertools.pairwise(results.values()):
        for key in ("commit", "files", "machine", "device"):
            if first[key] != other[key]:
                parts = f"the parts {first['part']} and {other['part']} differ"
                raise ValueError(f"{parts}: {key} {first[key]} and {other[key]}; run one again")
    first = next(iter(results.values()))
    real = first["device"] == "cuda"
    gpu = first["machine"].partition(",")[0].removeprefix("NVIDIA ")
    name = "gpu-" + re.sub("[^a-z0-9]+", "-", gpu.lower()).strip("-") if real else "gpu"
    measured = [part for part, result in results.items() if result["outcomes"]]
    if GOAL_PART not in measured:
        results = {part: results[part] for part in measured}
        name = "-".join([name, *(part for part in measured if part != "tests")])
    target = measure.RESULTS if real else folder
    (target / "plots").mkdir(parents=True, exist_ok=True)
    contenders = [contender(results, case) for case in (GOAL, *peer_cases())]
    if GOAL_PART in results:
        draw(results, contenders, target / "plots" / name)
    verdicts = [verdict for verdict in judge(results) if verdict.part in results]
    path = target / f"{name}.md"
    path.write_text(_page(name, results, verdicts, contenders), encoding="utf-8")
    code = report(verdicts)
    sys.stdout.write(f"{path}\n")
    return code


class Contender(NamedTuple):
    """One input for ResNet-50; its figures are nan if it was not measured."""

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


def peer_cases() -> list[str]:
    return [f"{peer}, ResNet-50" for peer in PEERS]


def from_memory(results: Results, case: str = GOAL) -> float:
    """Returns images per second without waiting for input; nan if not measured."""
    try:
        rates, gains = figures(results, case, "images_per_s"), figures(results, case, "headspace")
    except NoFigures:
        return math.nan
    return statistics.median(rate * gain for rate, gain in zip(rates, gains, strict=False))


def contender(results: Results, case: str) -> Contender:
    name = "this template" if case == GOAL else case.removesuffix(", ResNet-50")
    try:
        rate, wait, cores = (
            statistics.median(figures(results, case, key))
            for key in ("images_per_s", WAIT, "cores")
        )
    except NoFigures as error:
        return Contender(name, why=error.reason)
    return Contender(name, rate, wait, cores, cores / rate * from_memory(results))


def draw(results: Results, contenders: Sequence[Contender], stem: Path) -> None:
    rows, spoken = [], []
    for one in contenders:
        known = math.isfinite(one.needed)
        texts = (f"{one.rate:.0f}", f"{one.needed:.1f}") if known else ("not measured", "")
        values = (one.rate, one.needed) if known else (0.0, 0.0)
        rows.append(Row(one.name, texts, values, one.name == "this template"))
        spoken.append(f"{one.name}: {' images per second, cores: '.join(texts)}")
    if math.isfinite(most := from_memory(results)):
        rows.append(Row("input from memory", (f"{most:.0f}", ""), (most, 0)))
    titles = (
        f"ResNet-50: images/s on {PEER_CORES} cores (more is better)",
        "cores that keep one GPU busy (less is better)",
    )
    write_bars(stem, titles, rows, "; ".join(spoken))


def _page(
    name: str, results: Results, verdicts: Sequence[Verdict], contenders: Sequence[Contender]
) -> str:
    first, dates = next(iter(results.values())), sorted(r["date"] for r in results.values())
    changed = {True: ", with changes", False: "", None: ", perhaps with changes"}[first["dirty"]]
    made = f"commit {first['commit']}{changed}, files {first['files']}; {first['machine']}; "
    made += " to ".join(sorted({dates[0], dates[-1]}))
    dry = "A dry run on a CPU: its figures and verdicts say nothing about a GPU.\n"
    head = ["ResNet-50, eager", "images/s", "data wait, %", "cores busy", "cores for one GPU"]
    rows = [
        [c.name, _cell(c.why), *[""] * 3] if c.why else [c.name, f"{c.rate:.0f}", *c[2:-1]]
        for c in contenders
    ]
    goal = [PICTURE.format(name=name, title=TITLE), measure.table(head, rows)]
    facts = {key: text for result in results.values() for key, text in result["facts"].items()}
    lines = [
        f"# {TITLE}\n",
        *([] if first["device"] == "cuda" else [dry]),
        *(goal if GOAL_PART in results else []),
        _compiled(results),
        f"{METHOD}\n",
        f"`make figures ONLY=gpu`; {made}.\n",
        "## Promises\n",
        measure.table(
            ["promise", "verdict", "found"],
            [[v.promise, f"**{v.word}**", _cell(v.reason)] for v in verdicts],
        ),
        "## Runs\n",
        _runs(results),
        "## Machine\n",
        measure.table(["", ""], list(facts.items())),
    ]
    return "\n".join(lines)


def _compiled(results: Results) -> str:
    """The table of what compilation brings, for ResNet-50 and each recipe."""
    rows = []
    for recipe, cases in (
        *([("ResNet-50", (GOAL, COMPILED))] if GOAL_PART in results else []),
        *((recipe, tuple(f"{recipe}, {how}" for how in HOW)) for recipe in recipes_of(results)),
    ):
        row: list[object] = [recipe]
        rates = []
        for case in cases:
            try:
                found = [statistics.median(figures(results, case, k)) for k in COLUMNS]
                rates.append(found[0])
                row += [f"{found[0]:.0f}", *found[1:]]
            except NoFigures as error:
                row += [_cell(error.reason), "", ""]
        row.append(f"{rates[1] / rates[0]:.2f}" if len(rates) == len(cases) else "")
        rows.append(row)
    heads = [f"{how}: {what}" for how in HOW for what in ("images/s", "data wait, %", "cores busy")]
    return measure.table(["", *heads, "compiled / eager"], rows)


COLUMNS = ("images_per_s", WAIT, "cores")


def _runs(results: Results) -> str:
    """How each case ended, how long it took, its steps, and the GPU's clock and temperature."""
    rows = []
    keys = ("images_per_s", P50, P99)
    for part, result in results.items():
        timed = [] if part == "tests" else result["outcomes"]
        for one in (Outcome(**outcome) for outcome in timed):
            ended = f"exit code {one.code}" if one.ended == ENDED else one.ended
            ended += f": {_cell(one.why)}" if one.why else ""
            values = [one.values.get(key) for key in keys]
            shown = [float(statistics.median(v)) if v else "" for v in values]
            heat = ", ".join(f"{c['MHz']:.0f}/{c['C']:.0f}" for c in one.clocks if c)
            name, took = f"{one.case}, {one.round}", f"{one.seconds:.0f} ({one.estimate:.0f})"
            rows.append([part, name, ended, took, *shown, heat])
    head = ["part", "case, round", "ended", "seconds (estimate)"]
    return measure.table([*head, "images/s", "step p50, ms", "step p99, ms", "MHz/°C"], rows)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
