"""Restricted containers: no network, read-only root, another user, a tiny /dev/shm."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import READY, Job

STRANGER, OTHER = 12345, 54321
# Asks the server from inside a container without a network.
ASK = """
import sys, urllib.request
kind = {"Content-Type": "image/jpeg"}
body = open(sys.argv[1], "rb").read()
request = urllib.request.Request("http://127.0.0.1:8080/invocations", body, kind)
print(urllib.request.urlopen(request).read().decode())
"""


def locked_up(user: int) -> tuple[str, ...]:
    return ("--read-only", f"--user={user}:{user}", "--cap-drop=ALL")


LOCKED_UP = locked_up(STRANGER)


def another_machine(job: Job) -> str:
    """An option for a compiler that defines other macros, as one for another processor would."""
    compiler = job.folder / "input" / "another-machine-c++"
    compiler.write_text('#!/bin/sh\nexec c++ -DANOTHER_MACHINE "$@"\n')
    compiler.chmod(0o755)
    return f"--env=CXX=/opt/ml/input/{compiler.name}"


@pytest.fixture(scope="module")
def confined(
    engine: Engine, prebuilt_image: str, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Job]:
    """A job that was started without a command and may write to /tmp and /opt/ml, at its end."""
    job = Job(engine, tmp_path_factory.mktemp("confined") / "ml", photos)
    job.give_to(STRANGER)
    overrides = ("trainer.epochs=1", "trainer.report=true")
    options = (*LOCKED_UP, "--tmpfs=/tmp")
    container = job.start(prebuilt_image, *options, overrides=overrides, command=())
    assert job.wait(container) == 0, job.log(container)
    yield job
    job.remove_containers()


def test_a_job_without_a_command_trains_if_only_tmp_and_opt_ml_are_writable(confined: Job) -> None:
    assert (confined.folder / "model/model.safetensors").is_file()
    assert "custom_op: compiling" not in confined.log(confined.containers[0])
    assert {p.stat().st_uid for p in (confined.folder / "model").iterdir()} == {STRANGER}


def test_another_user_serves_its_model_as_confined(
    engine: Engine, confined: Job, prebuilt_image: str, photos: Path
) -> None:
    server = engine.call(
        *("run", "--detach", *locked_up(OTHER), "--network=none", "--tmpfs=/tmp"),
        f"--volume={confined.folder}/model:/opt/ml/model:ro",
        f"--volume={photos}:/photos:ro",
        prebuilt_image,
        "serve",
    )
    confined.containers.append(server)
    confined.wait_for(server, READY)
    photo = next(photos.rglob("*.jpg")).relative_to(photos)
    answer = engine.call("exec", server, "python", "-c", ASK, f"/photos/{photo}")
    assert "predictions" in json.loads(answer)
    engine.call("stop", "--time=30", server)
    assert engine.call("inspect", "--format", "{{.State.ExitCode}}", server) == "0"


def test_an_operator_built_for_another_machine_is_rebuilt_in_tmp(
    job: Job, prebuilt_image: str
) -> None:
    job.give_to(STRANGER)
    container = job.start(
        prebuilt_image,
        *LOCKED_UP,
        "--tmpfs=/tmp:exec",
        another_machine(job),
        overrides=["trainer.epochs=1"],
    )
    assert job.wait(container) == 0, job.log(container)
    assert job.log(container).count("custom_op: built in") == 1


def test_a_noexec_tmp_is_an_error_with_the_fix(job: Job, prebuilt_image: str) -> None:
    job.give_to(STRANGER)
    container = job.start(prebuilt_image, *LOCKED_UP, "--tmpfs=/tmp", another_machine(job))
    assert job.wait(container) not in (0, 75)
    failure = (job.folder / "output/failure").read_text()
    assert "noexec" in failure and "CUSTOM_OP_CACHE" in failure


def test_a_tiny_dev_shm_is_enough_for_worker_processes(job: Job, prebuilt_image: str) -> None:
    overrides = ["pipeline=workers", "pipeline.num_workers=2", "trainer.epochs=1"]
    container = job.start(prebuilt_image, "--shm-size=1m", overrides=overrides)
    assert job.wait(container) == 0, job.log(container)
