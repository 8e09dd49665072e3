"""Serve a model in the image on this machine, as SageMaker does: ``make docker-serve``.

``python -m launch.docker_serve [model_dir=FOLDER] [Hydra overrides of configs/serve.yaml]``.
Environment variables:

PORT     port on this machine; default 8080
NETWORK  host: use this machine's network, for engines that cannot publish ports

IMAGE, DEVICE, ENGINE and GPUS select image, engine and GPUs as for ``make docker-train``.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from entry_point.contract.user_error import UserError
from launch.command_line import LaunchError
from launch.containers.container_run import Containers
from launch.containers.engine import find_engine
from launch.containers.gpus import select_gpus
from launch.containers.image_name import local_reference
from launch.containers.run_options import bind, gpu_options, owner_options

PROGRAM = "docker-serve"
LATEST = Path("runs/latest/model")
STOP_SECONDS = 30


def split_model(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of ``model_dir=FOLDER``, and the other arguments; raises LaunchError."""
    named = [each.partition("=")[2] for each in arguments if each.startswith("model_dir=")]
    folder = Path(named[-1]) if named else LATEST
    if not folder.is_dir():
        raise LaunchError(
            f"model_dir={folder}: there is no such folder; name the model folder of a finished run"
        )
    return folder.resolve(), [each for each in arguments if not each.startswith("model_dir=")]


def network_options() -> list[str]:
    """Make the server's port reachable on this machine only; raises LaunchError."""
    port, network = os.environ.get("PORT") or "8080", os.environ.get("NETWORK") or ""
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise LaunchError(f"PORT={port}: must be a number from 1 to 65535")
    if network not in ("", "host"):
        raise LaunchError(f"NETWORK={network}: must be host or unset")
    reach = "--network=host" if network else f"--publish=127.0.0.1:{port}:{port}"
    return [reach, f"--env=SAGEMAKER_BIND_TO_PORT={port}"]


def serve(arguments: Sequence[str]) -> int:
    """Run the server until Ctrl-C; returns its exit code. Raises UserError."""
    options = network_options()
    folder, overrides = split_model(arguments)
    engine, image = find_engine(), local_reference()
    if engine.image(image) is None:
        raise LaunchError(f"there is no image {image}: run `make image` first")
    with Containers(engine, f"serve-{os.getpid()}", STOP_SECONDS, PROGRAM) as containers:
        containers.create(
            "server",
            *options,
            bind(folder, "/opt/ml/model", "readonly"),
            "--read-only",
            # The operator is compiled there, unless the image has it.
            "--tmpfs=/tmp:exec",
            *gpu_options(engine, select_gpus(hosts=1)),
            *owner_options(engine),
            image,
            "serve",
            *overrides,
        )
        return containers.run()


def main(arguments: Sequence[str]) -> int:
    """The server's exit code; an error before it starts is one line and exit code 1."""
    try:
        return serve(arguments)
    except UserError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROGRAM}: stopped before the server started\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
