"""Train and serve in the image on this machine, in containers set up as SageMaker sets them up:
``make docker-train`` and ``make docker-serve``.

``python -m launch.docker train [name=NAME] [channel.NAME=FOLDER] [job.code=true] [overrides]``
trains. ``data.root=FOLDER`` becomes the channel ``training``; of a table, its folder does. So do
``data.images``, ``data.index_root`` and ``model.weights``, each another channel. ``job.code=true``
runs the ``project/`` and ``configs/`` of this folder instead of the image's. The same name again
resumes the run.

``python -m launch.docker serve [model_dir=FOLDER] [overrides of configs/serve.yaml]`` serves a
model, by default that of the newest run that has one, until Ctrl-C.

Environment variables, which ``make docker-train GPUS=1`` sets:

NETWORK   a network of the engine: none as under SageMaker's network isolation, or host
GPUS      GPUs as in ``docker run --gpus``; default: all, 0 for none
SHM_SIZE  train: size of /dev/shm; default 1g
PORT      serve: port on this machine; default 8080

IMAGE, DEVICE and ENGINE select image and engine as in ``launch.image``.
"""

import argparse
import csv
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from entry_point.config.override_text import spell
from entry_point.config.retired import retired
from entry_point.job import own_code
from entry_point.job.program import (
    ExitCode,
    UserError,
    run_for_reader,
    run_program,
    stop_signals,
)
from entry_point.job.run_folder import (
    CONTAINER_ROOT,
    JOB_NAME,
    LATEST,
    PRETRAINED,
    RUN_NAME,
    RunFolder,
    require_model,
)
from launch import say
from launch.engine import Engine, find_engine
from launch.image import image_reference
from launch.local import RUNS, create_run_folder, split_name
from launch.own_code import require_free_channel, split_code

IN_CONTAINER = RunFolder(CONTAINER_ROOT).channels
# The channel that a setting with a path becomes.
CHANNELS = {
    "data.root": "training",
    "data.images": "images",
    "data.index_root": "index",
    "model.weights": "weights",
}
QUOTES = "'\""  # of Hydra, as around a comma
NOT_STARTED = 125  # exit code of `docker run`, as for GPUs that are missing
# Folders of the run that a job writes to.
WRITTEN = ("model", "output", "checkpoints")


def train(arguments: Sequence[str]) -> int:
    """Run a job until it ends; returns its exit code. Raises UserError if it cannot start."""
    if hosts := os.environ.get("HOSTS"):
        raise UserError(f"HOSTS={hosts}: {retired('HOSTS')}")
    name, rest = split_name(arguments)
    engine, image = find_image()
    code, rest = split_code(rest)
    channels, overrides = split_channels(rest)
    if code:
        require_free_channel(channels, "channel")
        say(f"docker-train: {code.describe()}")
    folder, is_new = create_run_folder(name)
    run = RunFolder(folder)
    variables = {JOB_NAME: folder.name, RUN_NAME: folder.name}
    for part in WRITTEN:
        (folder / part).mkdir(exist_ok=True)
    if code:
        # A folder per version of the code: the run's last job may still use an earlier one.
        channels[own_code.CHANNEL] = run.channels / f"{own_code.CHANNEL}-{code.hash}"
        code.write(channels[own_code.CHANNEL])
        variables[own_code.HASH] = code.hash
    say(f"docker-train: {image}; /opt/ml is {folder}")
    exit_code = run_container(
        engine,
        f"{folder.name}-{os.getpid()}",
        "--stop-timeout=120",
        *network_options(),
        f"--shm-size={os.environ.get('SHM_SIZE') or '1g'}",
        *mounts(folder, channels),
        *(f"--env={key}={value}" for key, value in variables.items()),
        image,
        "train",
        *overrides,
    )
    say(f"docker-train: exit code {exit_code}; /opt/ml was {folder}")
    if exit_code == ExitCode.FINISHED:
        run.become_latest()
    elif exit_code in (ExitCode.USAGE, NOT_STARTED) and is_new:
        run.remove_refused()
    return exit_code


def serve(arguments: Sequence[str]) -> int:
    """Run the server until Ctrl-C; returns its exit code. Raises UserError if it cannot start."""
    given = [each.partition("=")[2] for each in arguments if each.startswith("model_dir=")]
    model = on_this_machine(given[-1].strip(QUOTES)) if given else RUNS / LATEST / "model"
    require_model(model)
    port = os.environ.get("PORT") or "8080"
    engine, image = find_image()
    return run_container(
        engine,
        f"serve-{os.getpid()}",
        "--stop-timeout=30",
        # Only this machine reaches the port.
        *(network_options() or [f"--publish=127.0.0.1:{port}:{port}"]),
        f"--env=SAGEMAKER_BIND_TO_PORT={port}",
        bind(model.resolve(), "/opt/ml/model", "readonly"),
        "--read-only",
        # The operator is compiled there, unless the image has it for this processor.
        "--tmpfs=/tmp:exec",
        image,
        "serve",
        *(each for each in arguments if not each.startswith("model_dir=")),
    )


def find_image() -> tuple[Engine, str]:
    """Returns the engine, and the name of its image of this tree. Raises UserError."""
    engine, image = find_engine(), image_reference()
    engine.require_image(image)
    return engine, image


def run_container(engine: Engine, name: str, *arguments: str) -> int:
    """Run a container until it ends, and remove it; returns its exit code.

    Ctrl-C and SIGTERM reach the job as SIGTERM, as SageMaker's do; the second of them kills it.
    """
    requests: list[int] = []
    # Before the container starts, which would outlive a signal that ends this process.
    for number in stop_signals():
        signal.signal(number, lambda number, _: requests.append(number))
    process = subprocess.Popen(
        [*engine.command, "run", "--rm", f"--name={name}", *machine_options(), *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process only
    )
    told = 0
    while (code := process.poll()) is None:
        if len(requests) > told:
            told = len(requests)
            process.send_signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
        time.sleep(0.1)  # `wait` would miss a signal that comes just before it blocks
    # A `docker run` that was killed, or whose output nobody reads, ends before its container.
    if len(requests) < 2:
        subprocess.run([*engine.command, "stop", name], capture_output=True)
    subprocess.run([*engine.command, "rm", "--force", "--volumes", name], capture_output=True)
    if code == 128 + signal.SIGKILL and not requests:
        remedy = "give the engine more memory, or reduce the batch size"
        say(f"docker: the container was killed, as when it runs out of memory: {remedy}")
    return code if code >= 0 else 128 - code


def machine_options() -> list[str]:
    """Options for the user who owns what the container writes, and for GPUs."""
    gpus = os.environ.get("GPUS") or ("all" if shutil.which("nvidia-smi") else "0")
    return [f"--user={os.getuid()}:{os.getgid()}", *([] if gpus == "0" else [f"--gpus={gpus}"])]


def network_options() -> list[str]:
    network = os.environ.get("NETWORK")
    return [f"--network={network}"] if network else []


def mounts(run: Path, channels: Mapping[str, Path]) -> list[str]:
    """Options that mount what a run folder gets, and the channels; ``/opt/ml`` itself is not
    mounted."""
    return [
        *(bind(run / part, f"{CONTAINER_ROOT / part}") for part in WRITTEN),
        *(bind(path, f"{IN_CONTAINER / name}", "readonly") for name, path in channels.items()),
    ]


def bind(source: Path, target: str, *options: str) -> str:
    """Returns the option for a mount; unlike ``--volume``, it creates no missing folder as root.

    The engine reads it as a line of CSV, in which a path with a comma needs quotes.
    """
    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *options]
    csv.writer(line, lineterminator="").writerow(fields)
    return f"--mount={line.getvalue()}"


def on_this_machine(path: str) -> Path:
    """Expands ``~``, which the shell leaves as it is in ``key=~/folder``."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's raises for an unknown user


def split_channels(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Folders by channel name, and the job's overrides; raises UserError for a missing folder."""
    channels: dict[str, Path] = {}
    overrides: list[str] = []
    given = {each.partition("=")[0] for each in arguments}
    for argument in arguments:
        key, _, text = argument.partition("=")
        value = text.strip(QUOTES)
        name = CHANNELS.get(key) or key.removeprefix("channel.")
        is_inside = Path(value).is_relative_to(IN_CONTAINER)  # of a channel.NAME
        if name == key or value in ("", "null") or is_inside:
            overrides.append(argument)
            continue
        path = on_this_machine(value).resolve()
        is_name = value == PRETRAINED or f"channel.{value}" in given
        if key == "model.weights" and (is_name or not path.exists()):
            overrides.append(argument)  # a channel's name, or a file of the image
            continue
        is_file = key in CHANNELS and path.is_file()
        channels[name] = path.parent if is_file else path
        if not channels[name].is_dir():
            raise UserError(
                f"{value}: no such folder for the channel {name}; set {key} to a folder on this "
                "machine"
            )
        if is_file:
            overrides.append(f"{key}={spell(str(IN_CONTAINER / name / path.name))}")
        elif key in CHANNELS and name != "training":  # where the job looks by default
            overrides.append(f"{key}={IN_CONTAINER / name}")
    # The folder that `local-train` uses for any setting that needs it, as experiment=finetune.
    if Path(PRETRAINED).is_dir():
        channels.setdefault(PRETRAINED, Path(PRETRAINED).resolve())
    return channels, overrides


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the job or server; an error before its start is one line."""
    parser = argparse.ArgumentParser(
        "python -m launch.docker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("train", "serve"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    run = train if options.command == "train" else serve
    return run_program(
        f"docker-{options.command}", lambda: run_for_reader(lambda: run(options.overrides))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
