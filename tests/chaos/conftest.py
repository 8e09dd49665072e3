"""Chaos: random kills and faults, from a printed seed. `make test ONLY=chaos` runs it.

Each test repeats its scenario for its share of CHAOS_S seconds. A plain `pytest` collects nothing.
"""

import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("CHAOS_S", "0"))
SEED = os.environ.get("CHAOS_SEED", "0")
collect_ignore_glob = [] if SECONDS else ["test_*.py"]


def pytest_report_header() -> str:
    return f"chaos: SEED={SEED} CHAOS_S={SECONDS:g}" if SECONDS else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS + 600))


class Chaos:
    """Draws what happens, and says for how long. Everything follows from the seed and the name."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._until, self.rounds = name, time.monotonic() + seconds, 0
        self.seed = SEED

    def __iter__(self) -> Iterator[random.Random]:
        """A generator for each round until the time is up; at least one round."""
        while not self.rounds or time.monotonic() < self._until:
            print(f"round {self.rounds} of {self._name}, SEED={SEED}", flush=True)  # noqa: T201
            yield random.Random(f"{SEED} {self._name} {self.rounds}")
            self.rounds += 1


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> Chaos:
    """The rounds of a test; its mark `share` says which part of the time it gets."""
    share = request.node.get_closest_marker("share")
    assert share is not None
    return Chaos(request.node.name, SECONDS * share.args[0])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: sockets below it have names of at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        yield Path(name)
