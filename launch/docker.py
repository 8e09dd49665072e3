"""Train and serve in the image on this machine, in containers set up as SageMaker sets them up:
``make docker-train`` and ``make docker-serve``.

``python -m launch.docker train [name=NAME] [channel.NAME=FOLDER] [job.code=true] [overrides]``
trains. ``data.root=FOLDER`` becomes the channel ``training``; of a table, its folder does, and
``data.images=FOLDER`` becomes the channel ``images``. ``job.code=true`` runs the ``project/`` and
``configs/`` of this folder instead of the image's. The same name again resumes the run.

``python -m launch.docker serve [model_dir=FOLDER] [overrides of configs/serve.yaml]`` serves a
model, by default that of the newest run that has one, until Ctrl-C.

Environment variables, which ``make docker-train GPUS=1`` sets:

SHM_SIZE  train: size of /dev/shm; default 1g
NETWORK   train: none allows no network, as SageMaker's network isolation
          serve: a network of the engine, such as host for engines that cannot publish ports
PORT      serve: port on this machine; default 8080
GPUS      number of GPUs; default: all

IMAGE, DEVICE and ENGINE select image and engine as in ``launch.image``.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from entry_point.config.retired import retired
from entry_point.job import own_code
from entry_point.job.program import ExitCode, UserError, run_for_reader, run_program
from entry_point.job.run_folder import CONTAINER_ROOT, JOB_NAME, LATEST, RUN_NAME, RunFolder
from launch.containers import run_container, say
from launch.engine import Engine, find_engine
from launch.image import built_revision, image_reference
from launch.local import RUNS, create_run_folder, split_name
from launch.own_code import require_free_channel, split_code
from launch.revision import revision

IN_CONTAINER = RunFolder(CONTAINER_ROOT).channels
# The channel that a setting with a path becomes.
CHANNELS = {"data.root": "training", "data.images": "images"}
# What a job writes to, in its run folder.
WRITTEN = ("model", "output", "checkpoints")
TRAIN_STOP_SECONDS = 120
SERVE_STOP_SECONDS = 30


def train(arguments: Sequence[str]) -> int:
    """Run a job until it ends; returns its exit code. Raises UserError if it cannot start."""
    if hosts := os.environ.get("HOSTS"):
        raise UserError(f"HOSTS={hosts}: {retired('HOSTS')}")
    network = os.environ.get("NETWORK")
    if network and network != "none":
        raise UserError(f"NETWORK={network}: must be none or unset")
    name, rest = split_name(arguments)
    engine = find_engine()
    image = find_image(engine, "docker-train")
    code, rest = split_code(rest)
    channels, overrides = split_channels(rest)
    environment = {}
    if code:
        require_free_channel(channels, "channel")
        say("docker-train", code.describe())
        environment[own_code.HASH] = code.hash
    folder, is_new = create_run_folder(name)
    environment |= {JOB_NAME: folder.name, RUN_NAME: folder.name}
    run = RunFolder(folder)
    with run.hold():  # until the container does
        for part in WRITTEN:
            (folder / part).mkdir(exist_ok=True)
        if code:
            code.write(run.channels)
            channels[own_code.CHANNEL] = run.channels / own_code.CHANNEL
    say("docker-train", f"{image}; /opt/ml is {folder}")
    exit_code = run_container(
        engine,
        "docker-train",
        f"{folder.name}-{os.getpid()}",
        TRAIN_STOP_SECONDS,
        *([f"--network={network}"] if network else []),
        f"--shm-size={os.environ.get('SHM_SIZE') or '1g'}",
        *mounts(folder, channels),
        *gpu_options(),
        *owner_options(engine),
        *(f"--env={key}={value}" for key, value in environment.items()),
        image,
        "train",
        *overrides,
    )
    say("docker-train", f"exit code {exit_code}; /opt/ml was {folder}")
    if exit_code == ExitCode.FINISHED:
        run.become_latest()
    elif exit_code == ExitCode.USAGE and is_new:
        run.remove_refused()
    return exit_code


def mounts(run: Path, channels: Mapping[str, Path]) -> list[str]:
    """Options that mount what a run folder gets, and the channels; ``/opt/ml`` itself is not
    mounted."""
    return [
        *(bind(run / part, f"{CONTAINER_ROOT / part}") for part in WRITTEN),
        *(bind(path, f"{IN_CONTAINER / name}", "readonly") for name, path in channels.items()),
    ]


def serve(arguments: Sequence[str]) -> int:
    """Run the server until Ctrl-C; returns its exit code. Raises UserError if it cannot start."""
    named = [each.partition("=")[2] for each in arguments if each.startswith("model_dir=")]
    model = Path(named[-1]) if named else RUNS / LATEST / "model"
    if not model.is_dir():
        raise UserError(
            f"model_dir={model}: there is no such folder; name the model folder of a finished run"
        )
    port, network = os.environ.get("PORT") or "8080", os.environ.get("NETWORK")
    engine = find_engine()
    image = find_image(engine, "docker-serve")
    return run_container(
        engine,
        "docker-serve",
        f"serve-{os.getpid()}",
        SERVE_STOP_SECONDS,
        # Only this machine reaches the port.
        f"--network={network}" if network else f"--publish=127.0.0.1:{port}:{port}",
        f"--env=SAGEMAKER_BIND_TO_PORT={port}",
        bind(model.resolve(), "/opt/ml/model", "readonly"),
        "--read-only",
        # The operator is compiled there, unless the image has it for this processor.
        "--tmpfs=/tmp:exec",
        *gpu_options(),
        *owner_options(engine),
        image,
        "serve",
        *(each for each in arguments if not each.startswith("model_dir=")),
    )


def find_image(engine: Engine, program: str) -> str:
    """Returns the image of this tree; a line says if the tree has changed since. Raises
    UserError."""
    image = image_reference()
    built = built_revision(engine, image)
    # An image without a revision is another project's, named on purpose.
    if built not in (None, revision()):
        say(program, f"{image} was built from {built}; `make image` builds this tree, {revision()}")
    return image


def split_channels(arguments: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Folders by channel name, and the job's overrides; raises UserError for a missing folder."""
    channels: dict[str, Path] = {}
    overrides: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        path = Path(value)
        if key.startswith("channel."):
            channels[key.removeprefix("channel.")] = path
        elif key in CHANNELS and value not in ("", "null"):
            name = CHANNELS[key]
            # A table lies in its channel.
            channels[name] = path.parent if path.is_file() else path
            inside = IN_CONTAINER / name / (path.name if path.is_file() else "")
            if inside != IN_CONTAINER / "training":  # where the job looks by default
                overrides.append(f"{key}={inside}")
        else:
            overrides.append(argument)
    for name, folder in channels.items():
        if not folder.is_dir():
            raise UserError(
                f"{folder}: no such folder for the channel {name}; set data.root or channel.NAME "
                "to a folder on this machine"
            )
    return {name: folder.resolve() for name, folder in channels.items()}, overrides


def bind(source: Path, target: str, *options: str) -> str:
    """Returns the option for a mount; unlike ``--volume``, it creates no missing folder as root."""
    return ",".join([f"--mount=type=bind,source={source},target={target}", *options])


def owner_options(engine: Engine) -> list[str]:
    """Make the user the owner of the files that the job writes."""
    # In a rootless engine, root in the container is the user outside.
    user = "0:0" if engine.is_rootless else f"{os.getuid()}:{os.getgid()}"
    # SELinux would otherwise deny podman's containers access to the mounted folders.
    return [f"--user={user}", *(["--security-opt=label=disable"] if engine.is_podman else [])]


def gpu_options() -> list[str]:
    """Options for ``$GPUS`` GPUs: by default all, if the machine has NVIDIA's driver."""
    count = os.environ.get("GPUS") or ("all" if shutil.which("nvidia-smi") else "0")
    if not count.isdecimal() and count != "all":
        raise UserError(f"GPUS={count}: must be a number or unset")
    if count == "0":
        return []
    return [f"--gpus={count}"]


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
