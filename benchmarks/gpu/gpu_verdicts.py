"""From measurements to verdicts: which promises are held. Nothing is measured or read here.

A promise is broken only by what was measured: a figure, or a process that failed by itself. What
was cut off, skipped or slowed by the GPU's heat is not measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu.gpu_plan import MODELS, OURS, PARTS, PEERS, ROUNDS
from benchmarks.gpu.gpu_runs import ENDED, Outcome, Result

HELD, BROKEN = "held", "broken"
NOT_MEASURED, NOT_DECIDED = "not measured", "not decided"
STUDENT_T = 4.303
"""For the 95 % interval of a mean of ROUNDS values."""
HEAT = ("HW Slowdown", "HW Thermal Slowdown", "SW Thermal Slowdown", "HW Power Brake")
MOST_HEAT = 0.01
"""The largest share of a run in which the GPU may slow itself."""
NO_TESTS = 5
"""pytest's exit code if it collects none."""

Rounds = Mapping[str, Sequence[Outcome]]
"""Case -> its outcomes."""


class Verdict(NamedTuple):
    part: str
    promise: str
    word: str
    """HELD, BROKEN, NOT_MEASURED or NOT_DECIDED."""
    reason: str


Judged = tuple[str, str]
"""Word and reason."""
Promise = Callable[[Rounds], Judged]


class NoFigures(Exception):
    """There is nothing to judge by; has the word and the reason."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(word, reason)
        self.word, self.reason = word, reason


def judge(results: Mapping[str, Result]) -> list[Verdict]:
    """A verdict per promise, the parts by worth."""
    rounds, found = rounds_of(results), []
    for part, promises in PROMISES.items():
        for promise, judged in promises:
            try:
                word, reason = judged(rounds)
            except NoFigures as error:
                word, reason = error.word, error.reason
            found.append(Verdict(part, promise, word, reason))
    return found


def rounds_of(results: Mapping[str, Result]) -> Rounds:
    found: dict[str, list[Outcome]] = {}
    for part in PARTS:
        for outcome in results[part].outcomes if part in results else ():
            found.setdefault(outcome.case, []).append(outcome)
    return found


def finished(rounds: Rounds, case: str, least: int = 1) -> Sequence[Outcome]:
    """The case's rounds. Raises NoFigures if one failed, did not end, or is missing."""
    outcomes = rounds.get(case, ())
    for one in outcomes:
        if one.code:
            reason = f"{case}, round {one.round}: exit code {one.code}: {one.why}"
            raise NoFigures(BROKEN, reason)
    for one in outcomes:
        if one.ended != ENDED:
            reason = f"{case}, round {one.round}: {one.ended}: {one.why}"
            raise NoFigures(NOT_MEASURED, reason)
    if len(outcomes) < least:
        raise NoFigures(NOT_MEASURED, f"{case}: {len(outcomes)} of {least} rounds have run")
    return outcomes


def figures(rounds: Rounds, case: str, key: str, least: int = 1) -> list[float]:
    """The rounds' values of `key`. Raises NoFigures."""
    outcomes = finished(rounds, case, least)
    values = [float(one.values.get(key, math.nan)) for one in outcomes]
    if not all(map(math.isfinite, values)):
        raise NoFigures(NOT_MEASURED, f"{case}: {key} is missing or not a number")
    for one in outcomes:
        if reason := slowed(one):
            raise NoFigures(NOT_MEASURED, f"{case}, round {one.round}: {reason} of the GPU")
    return values


def slowed(one: Outcome) -> str:
    """The reason for which the GPU slowed itself during a run; empty if it did not."""
    before, after = one.clocks or ({}, {})
    for key, value in after.items():
        seconds = value - before.get(key, 0.0) if key.endswith(", s") else one.seconds
        if key.startswith(HEAT) and seconds > MOST_HEAT * one.seconds:
            return key.removesuffix(", s").removesuffix(" now")
    return ""


def at_most(values: Sequence[float], most: float) -> Judged:
    """Judges the mean of ROUNDS values by its 95 % interval."""
    mean = statistics.mean(values)
    half = STUDENT_T * statistics.stdev(values) / math.sqrt(ROUNDS)
    found = f"{mean:.4g} ± {half:.2g}; at most {most:g}"
    if mean + half <= most:
        return HELD, found
    return (BROKEN if mean - half > most else NOT_DECIDED), found


def below(case: str, key: str, most: float, *, per: str = "", base: str = "") -> Promise:
    """`key` is at most `most`; or is it divided by `per`, or by the base's in the same round."""

    def judged(rounds: Rounds) -> Judged:
        values, divisors = figures(rounds, case, key, ROUNDS), [1.0] * ROUNDS
        if per or base:
            try:
                divisors = figures(rounds, base or case, per or key, ROUNDS)
            except NoFigures as error:
                raise NoFigures(NOT_MEASURED, f"no comparison: {error.reason}") from None
        return at_most([a / b for a, b in zip(values, divisors, strict=True)], most)

    return judged


def measured(case: str, *, ours: bool = False) -> Promise:
    """The case has images/s. A peer that fails breaks no promise."""

    def judged(rounds: Rounds) -> Judged:
        try:
            values = figures(rounds, case, "images_per_s")
        except NoFigures as error:
            return (error.word if ours else NOT_MEASURED), error.reason
        return HELD, f"{statistics.median(values):.0f} images/s"

    return judged


def tests_pass(rounds: Rounds) -> Judged:
    case = "tests marked gpu"
    if any(one.code == NO_TESTS for one in rounds.get(case, ())):
        return NOT_MEASURED, "no test was collected"
    (one,) = finished(rounds, case)
    passed, skipped = (one.values.get(key, 0) for key in ("passed", "skipped"))
    return (HELD if passed else NOT_MEASURED), f"{passed} passed, {skipped} skipped"


def answered(case: str, key: str) -> Promise:
    """A process that prints `{key: [whether it holds, what it found]}`."""

    def judged(rounds: Rounds) -> Judged:
        (one,) = finished(rounds, case)
        holds, found = one.values.get(key, (False, "no answer"))
        return (HELD if holds else BROKEN), found

    return judged


GOAL, FAST = (f"{OURS}, {model}" for model in MODELS)
WAIT, P50, P99 = "data_wait_pct", "step_ms_p50", "step_ms_p99"
PROMISES: dict[str, list[tuple[str, Promise]]] = {
    "tests": [("The tests marked `gpu` pass", tests_pass)],
    "goal": [
        ("Training waits for data for less than 1 % of the time", below(GOAL, WAIT, 1)),
        ("A step takes at most 2 % more than from memory", below(GOAL, "headspace", 1.02)),
        ("The 99th percentile of steps is at most 1.2 of p50", below(GOAL, P99, 1.2, per=P50)),
        (f"{MODELS[1]} trains", measured(FAST, ours=True)),
    ],
    "peers": [
        (f"{peer}, {model}, is measured", measured(f"{peer}, {model}"))
        for model in MODELS
        for peer in PEERS
    ],
    "options": [
        ("Averaging makes steps at most 2 % slower", below("EMA", P50, 1.02, base="eager")),
        ("Compiled steps are no slower than eager ones", below("compiled", P50, 1, base="eager")),
        ("Compiled training waits for data for less than 1 %", below("compiled", WAIT, 1)),
    ],
    "serving": [
        ("The server answers in fp32 as on the CPU", answered("serving", "fp32")),
        ("The server answers in bf16 as on the CPU", answered("serving", "bf16")),
        ("Concurrent requests share batches", answered("serving", "batches")),
    ],
}
