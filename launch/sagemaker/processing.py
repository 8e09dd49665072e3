"""Processing jobs: packing a dataset, and predicting images, each host its part.

`make sagemaker-dataset ARGS="source=s3://... output=s3://... [overrides]"` packs.
`make sagemaker-predict ARGS="JOB input=s3://... output_dir=s3://... [overrides]"` predicts. All
hosts write below the same S3 prefix, where readers find all parts. Overrides of configs/launch.yaml
select the machines, those of configs/optimize.yaml and configs/predict.yaml set how to pack and to
predict.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from entry_point.config.compose import load_config
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from entry_point.job.program import UserError
from entry_point.job.run_folder import SHARDED
from launch.sagemaker.aws import aws_client, region_of, session_unless_dry
from launch.sagemaker.checks import (
    environment_problems,
    input_shape,
    member_of,
    missing,
    registry_problems,
    require_sendable,
    role_problems,
    typed,
    warn_of_outputs,
)
from launch.sagemaker.config import LaunchConfig, load_launch_config, one_name, split_names
from launch.sagemaker.jobs import Job
from launch.sagemaker.s3 import require_objects, split_prefix
from launch.sagemaker.training import find_trained, submit
from launch.sagemaker.training_request import (
    drop_empty,
    job_name,
    machines,
    merged,
    permissions,
)

OPERATION = "CreateProcessingJob"
ROOT = "/opt/ml/processing"
REPLICATED = "FullyReplicated"
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
DESCRIPTION = re.compile(r"dataset(-\d+-of-\d+)?\.json")
SPLITS = ("train", "val", "test")
# Members of the request that say what the job reads, does and writes.
_OURS = (
    "ProcessingInputs",
    "ProcessingOutputConfig.Outputs",
    "AppSpecification.ContainerArguments",
)
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_FIRST = 100
"""Objects that show what a source holds."""


def pack(arguments: Sequence[str]) -> Job | None:
    """Launch a packing job; a dry run prints its request, without any call, and returns None.

    Raises UserError, also if the output has objects.
    """
    config, others = load_launch_config(arguments, OptimizeConfig)
    config = _as_sent(config)
    uris, overrides = _split_uris(others, "source", "output")
    source, output = uris["source"], uris["output"]
    packing = load_config("optimize", OptimizeConfig, overrides)
    problems = []
    if packing.output_format != "shards":
        problems.append(f"output_format={packing.output_format}: must be shards in a job; drop it")
    session = session_unless_dry()
    _require_valid(config, uris, packing.part, problems, session)
    if session:
        require_objects(aws_client(session, "s3"), {"source": f"{source}/"})
        if config.target.instance_count > 1:
            _require_class_folders(aws_client(session, "s3"), source)
    inputs = [_input("input", f"{source}/", SHARDED)]
    return _launch(
        _request(config, inputs, output, ["optimize", *overrides]),
        config,
        session,
        f"packs {source} into {output}; when it has completed, train on it with\n"
        f"  data=shards data.access=stream job.channels.training={output}/",
    )


def predict(arguments: Sequence[str]) -> Job | None:
    """Launch a prediction job; a dry run prints its request, without any call, and returns None.

    Of a folder's images, each host gets a share; of all else, everything. A dry run takes image,
    role and output from the launch config, and a prefix for a folder of images. Raises UserError.
    """
    names, overrides = split_names(arguments)
    name = one_name(names)
    config, others = load_launch_config(overrides, PredictConfig)
    uris, others = _split_uris(others, "input", "output_dir", "images")
    source, images = uris["input"], uris.pop("images", None)
    predicting = load_config("predict", PredictConfig, others)
    session = session_unless_dry()
    model, config = _model(name, _as_sent(config), session)
    is_table = source.lower().endswith(TABLES)
    problems = []
    if is_table and not images:
        problems.append(f"input={source}: needs images=s3://bucket/prefix, where its paths start")
    if images and not is_table:
        problems.append(f"images={images}: only for a table; drop it")
    _require_valid(config, uris, predicting.part, problems, session)
    command = ["predict", *others]
    if is_table:
        inputs = [_input("input", source, REPLICATED)]
        command.append(f"input='{ROOT}/input/{PurePosixPath(source).name}'")
    else:
        packed = session and _is_packed(aws_client(session, "s3"), source)
        inputs = [_input("input", f"{source}/", REPLICATED if packed else SHARDED)]
    if session:
        places = {"input": inputs[0]["S3Input"]["S3Uri"], f"{name}: its model": model}
        places |= {"images": f"{images}/"} if images else {}
        require_objects(aws_client(session, "s3"), places)
    inputs.append(_input("model", model, REPLICATED))
    command.append(f"model_dir='{ROOT}/model/{PurePosixPath(model).name}'")
    if images:
        inputs.append(_input("images", f"{images}/", REPLICATED))
        command.append(f"images={ROOT}/images")
    request = _request(config, inputs, uris["output_dir"], command)
    return _launch(request, config, session, f"predicts {source} into {uris['output_dir']}")


# The request


def _as_sent(config: LaunchConfig) -> LaunchConfig:
    """Returns the config with what `job.request` changes of image, role and machines."""
    cluster = "ProcessingResources.ClusterConfig"
    changes: dict[str, Any] = {
        name: value
        for name, member, kind in (
            ("image", "AppSpecification.ImageUri", str),
            ("instance_type", f"{cluster}.InstanceType", str),
            ("instance_count", f"{cluster}.InstanceCount", int),
        )
        if isinstance(value := member_of(config.job.request, member), kind)
    }
    role = config.job.request.get("RoleArn") or config.job.role
    target = replace(config.target, **changes)
    return replace(config, target=target, job=replace(config.job, role=role))


def _request(
    config: LaunchConfig, inputs: list[dict[str, Any]], output: str, arguments: list[str]
) -> dict[str, Any]:
    """Returns the request for one job that runs the container with these arguments.

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
        "NetworkConfig": job.network,
        **permissions(job),
    }
    sent: dict[str, Any] = merged(drop_empty(request), job.request)
    return sent


def _input(name: str, uri: str, distribution: str) -> dict[str, Any]:
    """Returns what each host gets in ROOT/NAME: a share of the objects, or all."""
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


def _launch(request: dict[str, Any], config: LaunchConfig, session: Any, what: str) -> Job | None:
    """Check and send the request; `what` tells the user what the job does."""
    require_sendable(request, OPERATION, config.job.request)
    if found := list(environment_problems(request)):
        raise UserError(*found)
    submit(session, OPERATION, request)
    if session is None:
        return None
    name: str = request["ProcessingJobName"]
    sys.stdout.write(f'job {name} created: {what}\n  make sagemaker ARGS="status {name}"\n')
    return Job(session, name, "Processing")


# Checks


def _split_uris(
    overrides: Sequence[str], source: str, output: str, *optional: str
) -> tuple[dict[str, str], list[str]]:
    """S3 URIs by key, without a slash at the end, and the other overrides. Raises UserError."""
    uris, others = {source: "", output: ""}, []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in (source, output, *optional):
            uris[key] = value.strip("'\"").rstrip("/")
        else:
            others.append(override)
    for key, uri in uris.items():
        if not uri.startswith("s3://"):
            raise UserError(f"{key}={uri}: must be s3://bucket/prefix")
    return uris, others


def _require_valid(
    config: LaunchConfig,
    uris: dict[str, str],
    part: str | None,
    problems: list[str],
    session: Any,
) -> None:
    """Raise UserError with one line for each problem, which names the config key.

    `uris` are those of the source and of the output, which must be empty.
    """
    found = [*role_problems(config.job.role)]
    # Settings that a Processing job does not have.
    for key, value in {
        "target.spot": config.target.spot,
        "job.code": config.job.code,
        "resume_from": config.resume_from,
    }.items():
        if value:
            found.append(f"{key}: not available for Processing jobs; drop it")
    members = input_shape(OPERATION).members
    for member, value in config.job.request.items():
        if value is not None and member not in members:
            found.append(
                f"job.request.{member}: Processing jobs have no such member; set it to null"
            )
    for member in _OURS:
        if member_of(config.job.request, member) is not None:
            found.append(f"job.request.{member}: set by the launcher; drop it")
    (source_key, source), (key, output) = uris.items()
    # What a job writes must not become part of what the next one reads.
    if f"{output}/".startswith(f"{source}/"):
        found.append(
            f"{key}={output}: must not be inside {source_key}={source}; choose another prefix"
        )
    if part:
        found.append(f"part={part}: set by the launcher; drop it")
    found += [*problems, *registry_problems(config.target, region_of(session))]
    if found:
        raise UserError(*(typed(line, config.job.request) for line in found))
    if session:
        _require_empty(aws_client(session, "s3"), key, output)
    warn_of_outputs({key: output}, config.job.output)


def _require_empty(s3: Any, key: str, uri: str) -> None:
    """Raise UserError, which names the setting `key`, if the prefix holds another object."""
    bucket, prefix = split_prefix(uri, key)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents", [])
    if found:
        raise UserError(
            f"{key}={uri}: not empty, the first object is s3://{bucket}/{found[0]['Key']}; "
            "choose another prefix, or delete the objects"
        )


def _require_class_folders(s3: Any, source: str) -> None:
    """Raise UserError for tar and Parquet files, of which a host's share may lack a split."""
    bucket, prefix = split_prefix(source, "source")
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=_FIRST).get("Contents", [])
    if found and all(item["Key"].lower().endswith((".tar", ".parquet")) for item in found):
        raise UserError(
            f"source={source}: holds {found[0]['Key'].rpartition('/')[2]}; several hosts can share "
            "only folders of images: set target.instance_count=1"
        )


def _model(name: str, config: LaunchConfig, session: Any) -> tuple[str, LaunchConfig]:
    """Returns the model's archive; and the config, with image and role of its job where it has
    none."""
    if name.startswith("s3://"):
        if not name.endswith(_ARCHIVES):
            raise UserError(f"{name}: must be a model.tar.gz, as a training job leaves it")
        return name, config
    known = {"target.image": config.target.image, "job.role": config.job.role}
    if session is None and (lacking := list(missing({**known, "job.output": config.job.output}))):
        raise UserError(*lacking)
    trained = find_trained(name, config, session)
    image = config.target.image or trained["AlgorithmSpecification"]["TrainingImage"]
    role = config.job.role or trained["RoleArn"]
    target, job = replace(config.target, image=image), replace(config.job, role=role)
    return trained["ModelArtifacts"]["S3ModelArtifacts"], replace(config, target=target, job=job)


def _is_packed(s3: Any, uri: str) -> bool:
    """Returns whether `make dataset` wrote it. Raises UserError for one of its splits."""

    def has_description(folder: str) -> bool:
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{folder}dataset", Delimiter="/")
        names = [item["Key"].removeprefix(folder) for item in found.get("Contents", [])]
        return any(DESCRIPTION.fullmatch(name) for name in names)

    bucket, prefix = split_prefix(uri, "input")
    folder, _, split = prefix.rstrip("/").rpartition("/")
    if split in SPLITS and has_description(f"{folder}/".lstrip("/")):
        raise UserError(f"input={uri}: is part of a packed dataset; name all of it")
    return has_description(prefix)
