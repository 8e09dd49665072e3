"""A server process with a small model, for tests that talk HTTP to it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from tests.chromium import Browser, running_browser
from tests.entry_point.serving.served_model import Served, serving, write_model


class Serve(Protocol):
    """Starts a server, waits until it is ready, and ends it after the test."""

    def __call__(
        self,
        *overrides: str,
        constants: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        becomes_ready: bool = True,
    ) -> Served: ...


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that training wrote. Tests must not change it."""
    return write_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with default limits, shared by the tests of a file."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, [f"model_dir={served_model}"], {}) as served:
        served.wait_until_ready()
        yield served
        assert served.process.poll() is None, served.log()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, in which each test opens a page."""
    with running_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[AbstractContextManager[Served]] = []

    def start(
        *overrides: str,
        constants: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        becomes_ready: bool = True,
    ) -> Served:
        log = tmp_path / f"log-{len(started)}"
        started.append(serving(log, overrides, environment or {}, constants))
        served = started[-1].__enter__()
        if becomes_ready:
            served.wait_until_ready()
        return served

    yield start
    for each in started:
        each.__exit__(None, None, None)
