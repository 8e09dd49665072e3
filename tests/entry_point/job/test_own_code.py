"""A job runs the code that was sent with it, in every process, and refuses any other."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.job import own_code
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from tests import forkserver
from tests.entry_point.training import forked_ranks
from tests.entry_point.training.training_jobs import write_job

CONFIGS = own_code.PROGRAM / "configs"
NET = """
from tests.own_models import tiny_net as net

class Grain:
    def __call__(self, image, generator):
        return image
"""
SENT = {"project/__init__.py": "", "project/sent.py": NET}
"""A module that the image's `project` does not have."""


def sent_code(run: RunFolder, files: dict[str, str]) -> str:
    """Fill the channel; returns the hash."""
    contents = {name: text.encode() for name, text in files.items()}
    for name, content in contents.items():
        path = run.channels / own_code.CHANNEL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return own_code.content_hash(contents)


def start(run: RunFolder, sent: str, command: str = "train") -> subprocess.CompletedProcess[str]:
    """Start the container's program for a job with code of the hash `sent`."""
    return subprocess.run(
        [sys.executable, "-m", "entry_point", command],
        env={**os.environ, "ML_ROOT": str(run.root), own_code.HASH: sent},
        capture_output=True,
        text=True,
    )


def traps(ran: Path) -> dict[str, str]:
    """Modules with names of installed packages; each leaves the file `ran` when it is imported."""
    text = f"open({str(ran)!r}, 'w').close()"
    return {f"{name}.py": text for name in ("omegaconf", "hydra", "torch", "gc", "uvicorn")}


def as_new() -> None:
    """Have this process and its ranks import our packages anew: they have another `project`."""
    forkserver.forget()
    forked_ranks.prepare()


def run_as_new(root: Path, data: Path, overrides: Sequence[str]) -> None:
    """Run a job in processes that have imported nothing of ours."""
    (_, *arguments), environment = write_job(root, data, overrides)
    log = root / "input" / "log"
    job = forkserver.start(arguments, log, environment=environment, prepare=as_new)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output


def test_every_process_uses_the_code_that_was_sent(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes: the supervisor, two ranks, and a reader for each of them."""
    run = RunFolder(tmp_path)
    texts = {p: p.read_text() for p in CONFIGS.rglob("*.yaml")}
    configs = {p.relative_to(CONFIGS.parent).as_posix(): text for p, text in texts.items()}
    configs["configs/trainer/default.yaml"] += "\nseed: 4711\n"
    monkeypatch.setenv(own_code.HASH, sent_code(run, {**SENT, **configs}))
    sent = ("model.name=project.sent.net", "augment.name=project.sent.Grain", "augment.per=sample")
    ranks = ("trainer.nproc_per_host=2", "pipeline=workers", "pipeline.num_workers=1")
    run_as_new(tmp_path, photo_folder, [*sent, *ranks, "trainer.epochs=1"])
    assert "seed: 4711" in (run.model / "config.yaml").read_text()
    # The next start of the same container finds the same files.
    assert start(run, os.environ[own_code.HASH], "env").returncode == 0


@pytest.mark.parametrize("command", ["train", "serve", "predict"])
def test_code_other_than_what_was_sent_is_refused_before_any_of_it_runs(
    tmp_path: Path, command: str
) -> None:
    run, ran = RunFolder(tmp_path / "ml"), tmp_path / "ran"
    sent = sent_code(run, SENT)
    found = sent_code(run, {**SENT, **traps(ran)})
    done = start(run, sent, command)
    assert done.returncode == ExitCode.USAGE
    assert not ran.exists()
    (line,) = done.stderr.splitlines()
    message = f"must hold the code with the hash {sent} that was sent, has {found}"
    assert line == f"{command}: {run.channels / 'code'}: {message}"
    if command == "train":
        assert run.failure.read_text() == line.removeprefix("train: ")


def test_only_the_package_project_is_imported_from_the_channel(tmp_path: Path) -> None:
    run, ran = RunFolder(tmp_path / "ml"), tmp_path / "ran"
    image = {p.relative_to(CONFIGS.parent).as_posix(): p for p in CONFIGS.rglob("*.yaml")}
    configs = {name: path.read_text() for name, path in image.items()}
    done = start(run, sent_code(run, {**SENT, **configs, **traps(ran)}), "env")
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_a_job_without_its_channel_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    done = start(run, "0" * 16)
    assert done.returncode == ExitCode.USAGE
    assert "the job has no channel code, must have the folder" in run.failure.read_text()


def test_the_hash_depends_on_names_and_contents_alone() -> None:
    one = own_code.content_hash({"a": b"1", "b": b"2"})
    assert one == own_code.content_hash({"b": b"2", "a": b"1"})
    others = [{"a": b"12", "b": b""}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1", "b": b"3"}]
    assert len({one, *map(own_code.content_hash, others)}) == 5


def test_a_channel_named_code_is_data_unless_the_launcher_sent_code(tmp_path: Path) -> None:
    run, ran = RunFolder(tmp_path / "ml"), tmp_path / "ran"
    sent_code(run, {"train/a/1.jpg": "x", **traps(ran)})
    assert start(run, "", "env").returncode == 0
    assert not ran.exists()
