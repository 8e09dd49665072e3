"""What holds for the tests of reading data."""

from multiprocessing import forkserver

import pytest

from entry_point.data.engines import subprocess_engine
from tests.entry_point.training import forked

# What the child does is the same; tests/entry_point/data/engines/test_subprocess_engine.py starts
# it as a job does.
STARTS_AS_IN_A_JOB = "test_subprocess_engine"


@pytest.fixture(autouse=True)
def children_that_start_at_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork the child of the engine `subprocess` from a server that has imported torch."""
    if request.module.__name__.rpartition(".")[2] == STARTS_AS_IN_A_JOB:
        return
    # Now: an engine starts it with the trainer's signals blocked, which its children would inherit.
    forkserver.ensure_running()
    monkeypatch.setattr(subprocess_engine, "_CONTEXT", forked.SERVER)
