"""Upload a folder to S3: ``make upload ARGS="FOLDER s3://BUCKET/PREFIX"``.

``python -m launch.upload FOLDER s3://BUCKET/PREFIX [OPTION ...]`` is ``aws s3 sync`` without hidden
files; its options are those of that command. It sends the files that S3 lacks, and those whose size
differs from the object's or that are newer. Run the same command again after an interruption.
``DRY_RUN=1`` prints the command.
"""

import sys
from collections.abc import Sequence

from entry_point.job.program import UserError, asks_for_help, run_for_reader, run_program
from launch.aws_cli import is_dry_run, run_aws


def main(arguments: Sequence[str]) -> int:
    """Returns the AWS CLI's exit code; an error before it starts is one line on stderr."""
    if asks_for_help(arguments, __doc__):
        return 0
    return run_program("upload", lambda: run_for_reader(lambda: _run(arguments)))


def _run(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or not arguments[1].startswith("s3://"):
        given = " ".join(arguments) or "nothing to upload"
        raise UserError(f'{given}: must be FOLDER s3://..., as in ARGS="photos s3://bucket/photos"')
    folder, uri, *options = arguments
    # The user's filters come last, which decide.
    hidden = [f"--exclude={pattern}" for pattern in (".*", "*/.*")]
    if (code := run_aws(["s3", "sync", folder, uri, *hidden, *options])) or is_dry_run():
        return code
    channel = f"job.channels.training={uri.rstrip('/')}/"
    sys.stdout.write(f'next: make sagemaker-train ARGS="{channel} ..." trains on it\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
