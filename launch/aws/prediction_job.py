"""Launching the job that predicts images: load the config, check the request, print or send it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.predict_config import PredictConfig
from launch.aws import processing_job
from launch.aws.hosting import TrainedModel
from launch.aws.s3 import split_prefix
from launch.aws.sagemaker_job import Job, find_job
from launch.aws.session import aws_client, is_dry_run, open_session, print_request
from launch.request import prediction_request, training_request
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import load_launch_config, split_names
from launch.request.prediction_request import Prediction


def launch(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it and returns None.

    A dry run asks AWS nothing: it takes image, role and output from the launch config, and a prefix
    for a folder of images. Raises LaunchError.
    """
    names, overrides = split_names(arguments)
    if len(names) != 1:
        raise LaunchError(
            f"{' '.join(names) or 'no model given'}: must be the name of one training job, or its "
            "s3://bucket/prefix/model.tar.gz"
        )
    config, others = load_launch_config(overrides)
    uris, others = processing_job.split_uris(others, ("input", "output_dir"), ("images",))
    load_config("predict", PredictConfig, others)
    images, output = uris.get("images"), uris["output_dir"]
    if is_dry_run():
        model, config = _model(names[0], config, None)
        wanted = Prediction(model, uris["input"], images, output, False, others)
        print_request(_checked_request(wanted, config, config.job.region))
        return None
    from launch.aws.ecr import require_image

    session = open_session(config.job.region)
    model, config = _model(names[0], config, session)
    s3 = aws_client(session, "s3")
    is_packed = _is_packed(s3, uris["input"])
    wanted = Prediction(model, uris["input"], images, output, is_packed, others)
    request = _checked_request(wanted, config, session.region_name)
    require_image(config.target, session)
    processing_job.require_empty(s3, "output_dir", output)
    return processing_job.create(request, session, f"predicts {uris['input']} into {output}")


def _checked_request(
    wanted: Prediction, config: LaunchConfig, region: str | None
) -> dict[str, Any]:
    name = training_request.job_name(config.job, datetime.now(UTC))
    request = prediction_request.build(config, wanted, name)
    prediction_request.check(request, config, wanted, region)
    return request


def _model(name: str, config: LaunchConfig, session: Any) -> tuple[str | None, LaunchConfig]:
    """The model's archive; and the config, with image and role of its job where it has none."""
    if name.startswith("s3://"):
        return name, config
    if session is None:
        return TrainedModel.planned(name, config).artifacts, config
    job, description = find_job(session, name)
    if job.kind != "Training":
        raise LaunchError(f"{name}: is a {job.kind} job, and only training jobs leave a model")
    model = TrainedModel.of(description)
    target = replace(config.target, image=config.target.image or model.image)
    settings = replace(config.job, role=config.job.role or model.role)
    return model.artifacts, replace(config, target=target, job=settings)


def _is_packed(s3: Any, uri: str) -> bool:
    """Whether `make dataset` wrote it. Raises LaunchError for one of its splits."""
    bucket, prefix = split_prefix(uri, "input")
    folder, _, split = prefix.rstrip("/").rpartition("/")
    if split in ("train", "val") and _exists(s3, bucket, f"{folder}/dataset.json".lstrip("/")):
        raise LaunchError(f"input={uri}: is part of a packed dataset; name all of it")
    return _exists(s3, bucket, f"{prefix}dataset.json")


def _exists(s3: Any, bucket: str, key: str) -> bool:
    found = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
    return [item["Key"] for item in found] == [key]
