"""Processing jobs: packing a dataset, and predicting images, each host its part.

`make sagemaker-dataset ARGS="source=s3://... output=s3://... [overrides]"` packs.
`make sagemaker-predict ARGS="JOB input=s3://... output_dir=s3://... [overrides]"` predicts. All
hosts write below the same S3 prefix, where readers find all parts. Overrides of configs/launch.yaml
select the machines, those of configs/optimize.yaml and configs/predict.yaml set how to pack and to
predict.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from launch.command_line import LaunchError
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, print_request
from launch.sagemaker.checks import missing, registry_problems, require_sendable
from launch.sagemaker.config import LaunchConfig, load_launch_config, split_names
from launch.sagemaker.jobs import Job, find_job
from launch.sagemaker.s3 import split_prefix
from launch.sagemaker.training_request import (
    drop_empty,
    job_name,
    machines,
    network,
    permissions,
)

ROOT = "/opt/ml/processing"
SHARDED, REPLICATED = "ShardedByS3Key", "FullyReplicated"
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
DESCRIPTION = re.compile(r"dataset(-\d+-of-\d+)?\.json")
_SPLITS = ("train", "val")
# Overrides that the launcher sets.
_SET_FOR_PACKING = ("part",)
_SET_FOR_PREDICTION = ("model_dir", "part")


def pack(arguments: Sequence[str]) -> Job | None:
    """Launch a packing job; a dry run prints its request, without any call, and returns None.

    Raises LaunchError if the output has objects, or the source has no classes or fewer objects than
    hosts.
    """
    config, others = load_launch_config(arguments)
    uris, overrides = _split_uris(others, ("source", "output"))
    load_config("optimize", OptimizeConfig, overrides)
    request = packing_request(config, uris["source"], uris["output"], overrides)
    problems = [*_packing_problems(uris["source"], uris["output"], overrides)]
    if is_dry_run():
        _show(request, config, problems)
        return None
    session = _checked_session(config, problems)
    s3 = aws_client(session, "s3")
    _require_empty(s3, "output", uris["output"])
    classes = _count_classes(s3, uris["source"], config.target.instance_count)
    output = uris["output"]
    job = _create(request, session, f"packs {classes} classes into {output}")
    sys.stdout.write(
        f"when it has completed, train on its output with\n"
        f"  data=shards data.access=stream job.channels.training={output}/\n"
    )
    return job


def predict(arguments: Sequence[str]) -> Job | None:
    """Launch a prediction job; a dry run prints its request, without any call, and returns None.

    A dry run takes image, role and output from the launch config, and a prefix for a folder of
    images. Raises LaunchError.
    """
    names, overrides = split_names(arguments)
    if len(names) != 1:
        raise LaunchError(
            f"{' '.join(names) or 'no model given'}: must be the name of one training job, or its "
            "s3://bucket/prefix/model.tar.gz"
        )
    config, others = load_launch_config(overrides)
    uris, others = _split_uris(others, ("input", "output_dir"), ("images",))
    load_config("predict", PredictConfig, others)
    dry = is_dry_run()
    session = None if dry else open_session(config.job.region)
    model, config = _model(names[0], config, session)
    problems = [*missing({"job.output": model}), *_prediction_problems(uris, others)]
    if dry:
        request = prediction_request(config, model or "", uris, others)
        _show(request, config, problems)
        return None
    session = _checked_session(config, problems)
    s3 = aws_client(session, "s3")
    packed = _is_packed(s3, uris["input"])
    request = prediction_request(config, model or "", uris, others, is_packed=packed)
    _require_empty(s3, "output_dir", uris["output_dir"])
    return _create(request, session, f"predicts {uris['input']} into {uris['output_dir']}")


# The requests


def packing_request(
    config: LaunchConfig, source: str, output: str, overrides: Sequence[str]
) -> dict[str, Any]:
    """The request of a job that packs `source` into `output`, S3 prefixes without a slash."""
    inputs = [_input("input", f"{source}/", SHARDED)]
    return _request(config, inputs, output, ["optimize", *overrides])


def prediction_request(
    config: LaunchConfig,
    model: str,
    uris: dict[str, str],
    overrides: Sequence[str],
    *,
    is_packed: bool = False,
) -> dict[str, Any]:
    """The request of a job that predicts `input` into `output_dir` with a model.tar.gz in S3.

    Of a folder's images, each host gets a share; of all else, everything.
    """
    # Damage is in the column `error`, and must not cost the other predictions.
    arguments = ["predict", "allow_bad=true", *overrides]
    source = uris["input"]
    if _is_table(source):
        inputs = [_input("input", source, REPLICATED)]
        arguments.append(f"input='{ROOT}/input/{PurePosixPath(source).name}'")
    else:
        inputs = [_input("input", f"{source}/", REPLICATED if is_packed else SHARDED)]
    inputs.append(_input("model", model, REPLICATED))
    arguments.append(f"model_dir='{ROOT}/model/{PurePosixPath(model).name}'")
    if "images" in uris:
        inputs.append(_input("images", f"{uris['images']}/", REPLICATED))
        arguments.append(f"images={ROOT}/images")
    return _request(config, inputs, uris["output_dir"], arguments)


def _request(
    config: LaunchConfig, inputs: list[dict[str, Any]], output: str, arguments: list[str]
) -> dict[str, Any]:
    """The request for one job that runs the container with these arguments.

    `output` is the S3 prefix, without a slash at the end, that gets the files of all hosts.
    """
    target, job = config.target, config.job
    s3_output = {"S3Uri": output, "LocalPath": f"{ROOT}/output", "S3UploadMode": "EndOfJob"}
    request: dict[str, Any] = {
        "ProcessingJobName": job_name(job),
        "ProcessingInputs": inputs,
        "ProcessingOutputConfig": {
            "Outputs": [{"OutputName": "parts", "S3Output": s3_output}],
            "KmsKeyId": job.kms_key,
        },
        "ProcessingResources": {"ClusterConfig": machines(config)},
        "StoppingCondition": {"MaxRuntimeInSeconds": target.max_runtime_s},
        "AppSpecification": {"ImageUri": target.image, "ContainerArguments": arguments},
        "NetworkConfig": network(job),
        **permissions(job),
    }
    return drop_empty(request)


def _input(name: str, uri: str, distribution: str) -> dict[str, Any]:
    """What each host gets in ROOT/NAME: a share of the objects, or all."""
    return {
        "InputName": name,
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": f"{ROOT}/{name}",
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": distribution,
        },
    }


# Checks and sending


def _split_uris(
    overrides: Sequence[str], required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """S3 URIs by key, without a slash at the end, and the other overrides. Raises LaunchError."""
    uris, others = dict.fromkeys(required, ""), []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in (*required, *optional):
            uris[key] = value.strip("'\"").rstrip("/")
        else:
            others.append(override)
    for key, uri in uris.items():
        if not uri.startswith("s3://"):
            raise LaunchError(f"{key}={uri}: must be s3://bucket/prefix")
    return uris, others


def _packing_problems(source: str, output: str, overrides: Sequence[str]) -> Iterator[str]:
    if f"{output}/".startswith(f"{source}/"):
        yield f"output={output}: must not be inside source={source}; choose another prefix"
    yield from _set_by_launcher(overrides, _SET_FOR_PACKING)
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key == "output_format" and value.strip("'\"") in ("folder", "index"):
            yield f"{override}: must be shards in a Processing job; drop it"


def _prediction_problems(uris: dict[str, str], overrides: Sequence[str]) -> Iterator[str]:
    source, images, output = uris["input"], uris.get("images"), uris["output_dir"]
    if f"{output}/".startswith(f"{source}/"):
        yield f"output_dir={output}: must not be inside input={source}"
    if _is_table(source) and not images:
        yield f"input={source}: needs images=s3://bucket/prefix, where its paths start"
    if images and not _is_table(source):
        yield f"images={images}: only for a table; drop it"
    yield from _set_by_launcher(overrides, _SET_FOR_PREDICTION)


def _is_table(uri: str) -> bool:
    return uri.lower().endswith(TABLES)


def _set_by_launcher(overrides: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    for override in overrides:
        if override.lstrip("+").partition("=")[0] in keys:
            yield f"{override}: set by the launcher; drop it"


def _ignored(config: LaunchConfig) -> Iterator[str]:
    """Settings that a Processing job does not have."""
    target, job = config.target, config.job
    for key, value in {
        "target.spot": target.spot,
        "target.keep_alive_s": target.keep_alive_s,
        "job.code": job.code,
        "job.request": job.request,
        "resume_from": config.resume_from,
    }.items():
        if value:
            yield f"{key}: not available for Processing jobs; drop it"


def _require_valid(config: LaunchConfig, problems: list[str], region: str | None) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    found = [*missing({"job.role": config.job.role}), *_ignored(config), *problems]
    found += registry_problems(config.target, region)
    if found:
        raise LaunchError(*found)


def _show(request: dict[str, Any], config: LaunchConfig, problems: list[str]) -> None:
    """What a dry run does."""
    _require_valid(config, problems, config.job.region)
    require_sendable(request, "CreateProcessingJob")
    print_request(request)


def _checked_session(config: LaunchConfig, problems: list[str]) -> Any:
    """A boto3 session, after the checks that need no knowledge of the data."""
    # Imported here because a dry run does not need boto3, which takes long to load.
    from launch.sagemaker.ecr import require_image

    session = open_session(config.job.region)
    _require_valid(config, problems, session.region_name)
    require_image(config.target, session)
    return session


def _create(request: dict[str, Any], session: Any, what: str) -> Job:
    """Send the request; `what` tells the user what the job does."""
    aws_client(session, "sagemaker").create_processing_job(**request)
    name: str = request["ProcessingJobName"]
    sys.stdout.write(f'job {name} created: {what}\n  make sagemaker ARGS="status {name}"\n')
    return Job(session, name, "Processing")


# Data and models in S3


def _require_empty(s3: Any, key: str, uri: str) -> None:
    """Raise LaunchError, which names the setting `key`, if the prefix holds another object."""
    bucket, prefix = split_prefix(uri, key)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents", [])
    if found:
        raise LaunchError(
            f"{key}={uri}: not empty, the first object is s3://{bucket}/{found[0]['Key']}; "
            "choose another prefix, or delete the objects"
        )


def _count_classes(s3: Any, source: str, hosts: int) -> int:
    """The number of class folders of the splits, or of a source without splits.

    Raises LaunchError if the source is unusable.
    """
    bucket, prefix = split_prefix(source, "source")
    present = [found for split in _SPLITS if (found := _folders(s3, bucket, f"{prefix}{split}/"))]
    present = present or [_folders(s3, bucket, prefix)]
    if not present[0]:
        raise LaunchError(
            f"source={source}: has no class folders; must have {source}/CLASS/IMAGE, or "
            f"{source}/train/CLASS/IMAGE and {source}/val/CLASS/IMAGE"
        )
    if different := sorted(present[0] ^ present[-1]):
        raise LaunchError(
            f"source={source}: train and val must have the same classes; only one of them has "
            f"{', '.join(different[:5])}"
        )
    objects = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=hosts)["KeyCount"]
    if objects < hosts:
        limit = f"must be at most the number of objects in {source}, {objects}"
        raise LaunchError(f"target.instance_count={hosts}: {limit}")
    return len(present[0])


def _folders(s3: Any, bucket: str, prefix: str) -> set[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter="/"
    )
    found = pages.search("CommonPrefixes[].Prefix || `[]`")
    names = {path.removeprefix(prefix).rstrip("/") for path in found}
    return {name for name in names if not name.startswith(".")}


def _model(name: str, config: LaunchConfig, session: Any) -> tuple[str | None, LaunchConfig]:
    """The model's archive; and the config, with image and role of its job where it has none."""
    target, settings = config.target, config.job
    if name.startswith("s3://"):
        return name, config
    if session is None:
        output = settings.output
        return output and f"{output.rstrip('/')}/{name}/output/model.tar.gz", config
    job, description = find_job(session, name)
    if job.kind != "Training":
        raise LaunchError(f"{name}: is a {job.kind} job, and only training jobs leave a model")
    model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    if not model:
        raise LaunchError(f"{name}: has no model, the job is {job.state(description)}")
    image = target.image or description["AlgorithmSpecification"]["TrainingImage"]
    role = settings.role or description["RoleArn"]
    settings = replace(settings, role=role)
    return model, replace(config, target=replace(target, image=image), job=settings)


def _is_packed(s3: Any, uri: str) -> bool:
    """Whether `make dataset` wrote it. Raises LaunchError for one of its splits."""
    bucket, prefix = split_prefix(uri, "input")
    folder, _, split = prefix.rstrip("/").rpartition("/")
    if split in _SPLITS and _has_description(s3, bucket, f"{folder}/".lstrip("/")):
        raise LaunchError(f"input={uri}: is part of a packed dataset; name all of it")
    return _has_description(s3, bucket, prefix)


def _has_description(s3: Any, bucket: str, prefix: str) -> bool:
    """Whether `prefix` has the description of a dataset, or of one of its parts."""
    found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}dataset", MaxKeys=9, Delimiter="/")
    names = [item["Key"].removeprefix(prefix) for item in found.get("Contents", [])]
    return any(DESCRIPTION.fullmatch(name) for name in names)
