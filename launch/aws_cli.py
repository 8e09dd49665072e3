"""The AWS CLI, version 2, which this machine must have as it must have docker."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from entry_point.job.program import UserError

WHERE = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
MINE = Path(__file__).resolve().parents[1] / "configs" / "target" / "mine.yaml"
"""The role and output that `make setup-aws` has made in the account."""


def is_dry_run() -> bool:
    """Returns whether `make ... DRY_RUN=1` asks to print what would be sent."""
    return os.environ.get("DRY_RUN", "") not in ("", "0")


def run_aws(arguments: Sequence[str]) -> int:
    """Run `aws ARGUMENTS` in this terminal; returns its exit code. A dry run prints the command.

    Raises UserError if there is no AWS CLI, or if it is version 1.
    """
    command = ["aws", *arguments]
    if is_dry_run():
        sys.stdout.write(f"{shlex.join(command)}\n")
        return 0
    require_version_2()
    return subprocess.run(command).returncode


def ask_aws(*arguments: str) -> str:
    """Returns the output of `aws ARGUMENTS`. Raises UserError with its error, as `run_aws`."""
    require_version_2()
    done = subprocess.run(["aws", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise UserError(" ".join(done.stderr.split()))
    return done.stdout.strip()


def require_version_2() -> None:
    """Raises UserError unless `aws` is version 2, whose commands differ from version 1."""
    try:
        done = subprocess.run(["aws", "--version"], capture_output=True, text=True)
        found = re.match(r"aws-cli/(\S+)", done.stdout + done.stderr)  # old ones use stderr
    except FileNotFoundError:
        found = None
    if found is None or int(found[1].partition(".")[0]) < 2:
        wrong = f"aws is version {found[1]}" if found else "there is no command aws"
        raise UserError(f"{wrong}: install version 2 of the AWS CLI, see {WHERE}")
