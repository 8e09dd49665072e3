"""Serve the model of a training job on SageMaker: ``make sagemaker-deploy`` and its like.

``python -m launch.deploy COMMAND`` takes one of these commands, and overrides of
configs/launch.yaml such as ``job.region=eu-west-1``:

deploy JOB [overrides]             create or update an endpoint, wait until it serves
invoke ENDPOINT FILE...            send images, print the answers
undeploy ENDPOINT                  delete the endpoint, its config and its model
transform JOB [--wait] [overrides] classify every image below an S3 prefix

``DRY_RUN=1`` prints the requests of deploy and transform. The overrides of deploy are those of
configs/deploy.yaml, those of transform of configs/transform.yaml.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.command_line import CommandLine, LaunchError
from launch.sagemaker.aws import run_and_explain


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    parser = CommandLine("python -m launch.deploy")
    commands = {
        "deploy": _deploy,
        "invoke": _invoke,
        "undeploy": _undeploy,
        "transform": _transform,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("arguments", nargs="*", metavar="JOB, ENDPOINT, FILE or override")
    parser.add_argument("--wait", action="store_true", help="transform: watch until the job ends")
    options = parser.read(arguments)
    return run_and_explain(lambda: commands[options.command](options))


def _deploy(options: argparse.Namespace) -> int:
    from launch.aws.hosting import deployment, endpoint
    from launch.request.hosting.hosting_config import DeployConfig
    from launch.sagemaker.aws import is_dry_run, print_request

    # `async` is a keyword of Python and cannot be the name of a field.
    arguments = [re.sub("^async=", "async_output=", text) for text in options.arguments]
    wanted = deployment.load("deploy", DeployConfig, arguments)
    if is_dry_run():
        print_request(endpoint.checked_requests(wanted))
        return 0
    name = endpoint.deploy(wanted)
    sys.stdout.write(
        f'endpoint {name} serves; try it: make sagemaker-invoke ARGS="{name} IMAGE.jpg"\n'
    )
    return 0


def _invoke(options: argparse.Namespace) -> int:
    from launch.aws.hosting.invoke import answers

    session, (name, *files) = _session_and_names(options)
    if not files:
        raise LaunchError(f"{name}: no image given; add the paths of JPEG or other image files")
    paths = [Path(file) for file in files]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise LaunchError(f"{missing}: no such file")
    for path, answer in zip(paths, answers(session, name, paths), strict=True):
        sys.stdout.write(f"{path}\t{answer}\n")
    return 0


def _undeploy(options: argparse.Namespace) -> int:
    from launch.aws.hosting.endpoint import undeploy

    session, names = _session_and_names(options)
    for name in names:
        undeploy(session, name)
        sys.stdout.write(f"endpoint {name}: deleted, with its config and model\n")
    return 0


def _transform(options: argparse.Namespace) -> int:
    from launch.aws.hosting import deployment
    from launch.aws.hosting.transform import checked_requests, transform
    from launch.request.hosting.hosting_config import TransformConfig
    from launch.sagemaker.aws import is_dry_run, print_request
    from launch.sagemaker.jobs import follow

    wanted = deployment.load("transform", TransformConfig, options.arguments)
    if is_dry_run():
        print_request(checked_requests(wanted))
        return 0
    job = transform(wanted)
    if options.wait:
        return int(follow(job) not in ("Completed", None))
    sys.stdout.write(f'  make sagemaker ARGS="status {job.name}"\n')
    return 0


def _session_and_names(options: argparse.Namespace) -> tuple[Any, list[str]]:
    from launch.sagemaker.aws import open_session
    from launch.sagemaker.config import load_names

    names, config = load_names(options.arguments)
    if not names:
        raise LaunchError("no endpoint given; `make sagemaker ARGS=status` lists them")
    return open_session(config.job.region), names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
