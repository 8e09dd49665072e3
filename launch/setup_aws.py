"""Create role, bucket and repository for jobs: ``make setup-aws ARGS="Bucket=NAME"``.

``python -m launch.setup_aws PARAMETER=VALUE ... [stack=NAME]`` is ``aws cloudformation deploy`` of
launch/account.yaml, which describes its parameters. It creates the stack, or updates it if the
template or a parameter has changed; a parameter that is left out keeps its value. Another ``stack``
has another role. Role and output are written to configs/target/mine.yaml, which every launch reads.
``DRY_RUN=1`` prints the command. Credentials, profile and region are the AWS CLI's.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from entry_point.config.retired import retired
from entry_point.job.program import UserError, asks_for_help, run_for_reader, run_program
from launch import say
from launch.aws_cli import MINE, ask_aws, is_dry_run, run_aws
from launch.image import DEFAULT_NAME

TEMPLATE = Path(__file__).with_name("account.yaml")
STACK = "managed-training-template"
_HEADER = """# @package _global_
# Written by `make setup-aws`; every launch reads it. configs/launch.yaml is for your settings.
"""


def main(arguments: Sequence[str]) -> int:
    """Returns the AWS CLI's exit code; an error before it starts is one line on stderr."""
    if asks_for_help(arguments, __doc__):
        return 0
    return run_program("setup-aws", lambda: run_for_reader(lambda: _run(arguments)))


def _run(arguments: Sequence[str]) -> int:
    known = [*_parameters(), "stack"]
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        form = "" if equals else 'must be PARAMETER=VALUE, as in ARGS="Bucket=my-bucket"'
        # The AWS CLI ignores a parameter that the template does not have.
        other = "" if name in known else f"no such parameter, must be one of {', '.join(known)}"
        if message := form or retired(f"setup-aws {name}") or other:
            raise UserError(f"{argument}: {message}")
    parameters = dict(argument.split("=", 1) for argument in arguments)
    stack = parameters.pop("stack", STACK)
    command = [
        *("cloudformation", "deploy", "--no-fail-on-empty-changeset"),
        *("--stack-name", stack, "--template-file", os.path.relpath(TEMPLATE)),
        *("--capabilities", "CAPABILITY_NAMED_IAM"),
    ]
    if parameters:
        command += ["--parameter-overrides", *(f"{k}={v}" for k, v in parameters.items())]
    if (code := run_aws(command)) or is_dry_run():
        return code
    query = ("--stack-name", stack, "--query=Stacks[0].Outputs", "--output=json")
    outputs = json.loads(ask_aws("cloudformation", "describe-stacks", *query))
    made = {output["OutputKey"]: output["OutputValue"] for output in outputs}
    if MINE.is_file() and not MINE.read_text().startswith(_HEADER):
        raise UserError(
            f"{MINE}: is not from setup-aws, so it stays: move it, run this again, or set "
            f"job.role={made['Role']} job.output={made['Output']} yourself"
        )
    MINE.write_text(f"{_HEADER}job:\n  role: {made['Role']}\n  output: {made['Output']}\n")
    repository = made["Repository"].partition("/")[2]
    image = "" if repository == DEFAULT_NAME else f" IMAGE={repository}"
    say(
        f"every launch reads {os.path.relpath(MINE)}: "
        f"job.role={made['Role']} job.output={made['Output']}\n"
        f"next: `make image push{image}` pushes the image to {made['Repository']}"
    )
    return 0


def _parameters() -> list[str]:
    """Returns the names of the template's parameters."""
    section = re.search(r"^Parameters:\n(.*?)^\w", TEMPLATE.read_text(), re.M | re.S)
    return re.findall(r"^  (\w+):$", section[1], re.M) if section else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
