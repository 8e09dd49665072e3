"""What holds for all tests."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# How long an example takes says what else the machine does. No test passes or fails by chance.
settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")

# Whoever starts the tests in the background has them ignore Ctrl-C, and so the programs that they
# start and press Ctrl-C for.
signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup has them ignore a hangup, too. A handler, unlike that, is not passed on.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
HANDLERS = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

STARTED = time.time()
COLLECTED: dict[str, ModuleType] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the side indexes of the tests' folders from this host's cache.

    That may remove those of other jobs that run now, which costs them speed only.
    """
    gc.unfreeze()  # libraries name what is never collected as leaks
    if hasattr(session.config, "workerinput"):  # other workers of pytest-xdist may still use them
        return
    for file in Path(f"/var/tmp/jpeg-index-{os.getuid()}").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime >= STARTED:
                file.unlink()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, a line per reason."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED {count}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what the test files import: looking at all of it took a
    fifth of the time of collecting, in each of pytest's processes."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_finish() -> None:
    """Keep the package `project` that the test files have imported. Give torch one thread.

    On small tensors, its threads spend more time waiting for each other than computing; and pytest
    has a process per core. What Hydra has composed once is not composed again.
    """
    COLLECTED.update(own_modules())
    if "entry_point.config.compose" in sys.modules:
        from tests.composed import remember_compositions

        remember_compositions()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_project() -> Iterator[None]:
    """Loading a model folder with own code replaces `project` in its process: restore it."""
    before = [*sys.path]
    yield
    found = own_modules()
    if sys.path != before or any(found.get(name) is not COLLECTED[name] for name in COLLECTED):
        sys.path[:] = before
        for name in found:
            del sys.modules[name]
        sys.modules.update(COLLECTED)


@pytest.fixture(autouse=True)
def stop_handlers() -> None:
    """Programs that a test calls leave their handlers in its process, or signals blocked: this test
    may send Ctrl-C."""
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLERS)


def own_modules() -> dict[str, ModuleType]:
    return {n: module for n, module in sys.modules.items() if n.partition(".")[0] == "project"}


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder dataset of real photographs: 8 classes, 48 train and 24 val images.

    Hundreds of jobs decode all of them, so they are small.
    """
    from tests.photographs import write_photo_folder

    return write_photo_folder(tmp_path_factory.mktemp("photographs") / "root", shrink=2)


@pytest.fixture(scope="session")
def mixed_folder(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs of `photo_folder`, most of them in other formats than JPEG."""
    from tests.photographs import write_mixed_folder

    return write_mixed_folder(photo_folder, tmp_path_factory.mktemp("mixed") / "root")


@pytest.fixture(scope="session")
def packed(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs of `photo_folder` in several shards. Tests must not change it."""
    from tests.entry_point.data.packing.pack_command import pack

    output = tmp_path_factory.mktemp("packed") / "data"
    assert pack(photo_folder, output) == 0
    return output


@pytest.fixture(scope="session")
def packed_photos(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs of `photo_folder` in the shards that interrupted runs train from."""
    from tests.entry_point.training.ways import pack_photos

    return pack_photos(photo_folder, tmp_path_factory.mktemp("packed") / "root")
