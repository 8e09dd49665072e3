"""Upload a folder to S3: ``make upload ARGS="source=FOLDER s3=s3://BUCKET/PREFIX"``.

``python -m launch.upload`` skips files that S3 already has. If an object has different content, it
sends nothing, unless ``overwrite=true``. It never deletes objects. ``DRY_RUN=1`` prints what would
be sent.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from entry_point.config.compose import load_config
from launch.aws.s3.s3_bucket import split_prefix
from launch.aws.s3.s3_upload import UploadPlan, list_files, plan_upload, send_files, total_bytes
from launch.command_line import LaunchError
from launch.request.upload_config import UploadConfig
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, run_and_explain


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if S3 has all files (or DRY_RUN would send them), else 1."""
    return run_and_explain(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    config = load_config("upload", UploadConfig, arguments)
    plan = _upload(config)
    done = "would upload" if is_dry_run() else "uploaded"
    sys.stdout.write(
        f"{done} {len(plan.to_send)} files, {total_bytes(plan.to_send) / 1e6:,.1f} MB, to "
        f"{config.s3}; {plan.unchanged} files are already there\n"
        f"to train on them, add job.channels.training={config.s3.rstrip('/')}/\n"
    )
    return 0


def _upload(config: UploadConfig) -> UploadPlan:
    bucket, prefix = split_prefix(config.s3, "s3")
    files = list(list_files(Path(config.source)))
    if not files:
        raise LaunchError(f"source={config.source}: contains no files")
    s3 = aws_client(open_session(None), "s3")
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns) as progress:
        plan = plan_upload(files, s3, bucket, prefix, progress)
        if plan.changed and not config.overwrite:
            raise LaunchError(
                f"s3={config.s3}: {len(plan.changed)} objects differ from the local files, the "
                f"first is s3://{bucket}/{prefix}{plan.changed[0].name}; nothing was sent; "
                "set overwrite=true to replace them"
            )
        if not is_dry_run():
            send_files(plan.to_send, s3, bucket, prefix, progress)
    return plan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
