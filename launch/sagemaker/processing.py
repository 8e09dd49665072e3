"""Processing jobs: packing a dataset, and predicting images, each host its part.

`make sagemaker-dataset ARGS="source=s3://... output=s3://... [overrides]"` packs.
`make sagemaker-predict ARGS="JOB input=s3://... output_dir=s3://... [overrides]"` predicts. All
hosts write below the same S3 prefix, where readers find all parts. Overrides of configs/launch.yaml
select the machines, those of configs/optimize.yaml and configs/predict.yaml set how to pack and to
predict.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from entry_point.config.commands import typed
from entry_point.config.compose import load_config
from entry_point.config.override_text import quote
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.predict_config import PredictConfig
from entry_point.job.program import UserError
from entry_point.job.run_folder import SHARDED
from launch import say
from launch.sagemaker.aws import (
    aws_client,
    creating,
    print_request,
    region_of,
    session_unless_dry,
)
from launch.sagemaker.checks import (
    environment_problems,
    machine_problems,
    member_of,
    missing,
    warn_of_outputs,
)
from launch.sagemaker.config import LaunchConfig, load_launch_config, split_name
from launch.sagemaker.jobs import Job, find_trained
from launch.sagemaker.s3 import first_names, require_objects, split_s3
from launch.sagemaker.training_request import (
    BASE_NAME,
    drop_empty,
    machines,
    merged,
    permissions,
    require_types,
    stamped,
)

ROOT = "/opt/ml/processing"
REPLICATED = "FullyReplicated"
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
_DESCRIPTION = re.compile(r"dataset(-\d+-of-\d+)?\.json")
_SPLITS = ("train", "val", "test")
_CLUSTER = "ProcessingResources.ClusterConfig"
# Members of the request that say what the job reads, does and writes.
_OURS = (
    "ProcessingInputs",
    "ProcessingOutputConfig.Outputs",
    "AppSpecification.ContainerArguments",
)


def pack(arguments: Sequence[str]) -> Job | None:
    """Launch a packing job; a dry run prints its request, without any call, and returns None.

    Raises UserError, also if the output has objects.
    """
    config, others = load_launch_config(arguments, OptimizeConfig)
    uris, overrides = _split_uris(others, "source", "output")
    packing = load_config("optimize", OptimizeConfig, overrides)
    source, output = uris["source"], uris["output"]
    session, found = session_unless_dry(), _unused(arguments)
    if packing.output_format != "shards":
        form = packing.output_format
        found.append(f"output_format={form}: must be shards in a job; drop it")
    request = _request(config, {"input": (f"{source}/", SHARDED)}, output, ["optimize", *overrides])
    if session and member_of(request, f"{_CLUSTER}.InstanceCount") != 1:
        names = first_names(aws_client(session, "s3"), source, "source")
        # A host's share of tar or Parquet files may lack a split.
        if names and all(name.lower().endswith((".tar", ".parquet")) for name in names):
            found.append(
                f"source={source}: holds {names[0].rpartition('/')[2]}; several hosts can share "
                "only folders of images: set target.instance_count=1"
            )
    train = {"data": "shards", "data.access": "stream", "job.channels.training": f"{output}/"}
    what = f"packs {source} into {output}; when it has completed, train on it with\n"
    return _launch(request, config, uris, found, session, f"{what}  {typed(train)}")


def predict(arguments: Sequence[str]) -> Job | None:
    """Launch a prediction job; a dry run prints its request, without any call, and returns None.

    Of a folder's images, each host gets a share; of all else, everything. A dry run takes image,
    role and output from the launch config, and a prefix for a folder of images. Raises UserError.
    """
    name, overrides = split_name(arguments)
    config, others = load_launch_config(overrides, PredictConfig)
    uris, others = _split_uris(others, "input", "output_dir", "images")
    source, images = uris["input"], uris.pop("images", None)
    load_config("predict", PredictConfig, others)
    session, found = session_unless_dry(), _unused(arguments)
    is_table = source.lower().endswith(TABLES)
    if is_table and not images:
        found.append(f"input={source}: needs images=s3://bucket/prefix, where its paths start")
    if images and not is_table:
        found.append(f"images={images}: only for a table; drop it")
    model, config = _model(name, config, session)
    command = ["predict", *others]
    if is_table:
        inputs = {"input": (source, REPLICATED)}
        command.append(f"input={quote(f'{ROOT}/input/{PurePosixPath(source).name}')}")
    else:
        is_packed = session and _is_packed(aws_client(session, "s3"), source)
        inputs = {"input": (f"{source}/", REPLICATED if is_packed else SHARDED)}
    inputs["model"] = (model, REPLICATED)
    command.append(f"model_dir={quote(f'{ROOT}/model/{PurePosixPath(model).name}')}")
    if images:
        inputs["images"] = (f"{images}/", REPLICATED)
        command.append(f"images={ROOT}/images")
    request = _request(config, inputs, uris["output_dir"], command)
    what = f"predicts {source} into {uris['output_dir']}"
    return _launch(request, config, uris, found, session, what)


def _unused(arguments: Sequence[str]) -> list[str]:
    """Returns a line for each override that would change nothing of the job."""
    ours = ("part=", "model_dir=", "job.channels.")
    return [f"{each}: set by the launcher; drop it" for each in arguments if each.startswith(ours)]


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
        split_s3(uri, key)
    return uris, others


def _model(name: str, config: LaunchConfig, session: Any) -> tuple[str, LaunchConfig]:
    """Returns the model's archive; and the config, with image and role of its job where it has
    none."""
    if name.startswith("s3://"):
        if not name.endswith((".tar.gz", ".tgz", ".tar")):
            raise UserError(f"{name}: must be a model.tar.gz, as a training job leaves it")
        return name, config
    target, job = config.target, config.job
    if session is None:
        needed = {"target.image": target.image, "job.role": job.role, "job.output": job.output}
        if lacking := [*missing(needed)]:
            raise UserError(*lacking)
        return f"{str(job.output).rstrip('/')}/{name}/output/model.tar.gz", config
    trained = find_trained(session, name)
    image = target.image or trained["AlgorithmSpecification"]["TrainingImage"]
    target, job = replace(target, image=image), replace(job, role=job.role or trained["RoleArn"])
    return trained["ModelArtifacts"]["S3ModelArtifacts"], replace(config, target=target, job=job)


def _is_packed(s3: Any, uri: str) -> bool:
    """Returns whether `make dataset` wrote it. Raises UserError for one of its splits."""

    def has_description(folder: str) -> bool:
        return any(map(_DESCRIPTION.fullmatch, first_names(s3, folder, "input")))

    folder, _, split = uri.rpartition("/")
    if split in _SPLITS and has_description(folder):
        raise UserError(f"input={uri}: is part of a packed dataset; name all of it")
    return has_description(uri)


# The request


def _request(
    config: LaunchConfig, inputs: dict[str, tuple[str, str]], output: str, arguments: list[str]
) -> dict[str, Any]:
    """Returns the request for one job that runs the container with these arguments.

    `inputs`: by name, an S3 prefix and how it is distributed: each host gets a share of the objects
    in ROOT/NAME, or all. `output` is the S3 prefix, without a slash at the end, that gets the files
    of all hosts.
    """
    job = config.job
    s3_output = {"S3Uri": output, "LocalPath": f"{ROOT}/output", "S3UploadMode": "EndOfJob"}
    request: dict[str, Any] = {
        "ProcessingJobName": job.name or stamped(BASE_NAME),
        "ProcessingInputs": [
            {
                "InputName": name,
                "S3Input": {
                    "S3Uri": uri,
                    "LocalPath": f"{ROOT}/{name}",
                    "S3DataType": "S3Prefix",
                    "S3InputMode": "File",
                    "S3DataDistributionType": distribution,
                },
            }
            for name, (uri, distribution) in inputs.items()
        ],
        "ProcessingOutputConfig": {
            "Outputs": [{"OutputName": "parts", "S3Output": s3_output}],
            "KmsKeyId": job.kms_key,
        },
        "ProcessingResources": {"ClusterConfig": machines(config)},
        "StoppingCondition": {"MaxRuntimeInSeconds": config.target.max_runtime_s},
        "AppSpecification": {"ImageUri": config.target.image, "ContainerArguments": arguments},
        "NetworkConfig": job.network,
        **permissions(job),
    }
    sent: dict[str, Any] = merged(drop_empty(request), job.request)
    return sent


def _launch(
    request: dict[str, Any],
    config: LaunchConfig,
    uris: dict[str, str],
    found: Sequence[str],
    session: Any,
    what: str,
) -> Job | None:
    """Check and send the request, and say `what` the job does; without a session, print it.

    `uris` are those of the source and of the output, which must be empty. Raises UserError with one
    line for each problem, those that were `found` first.
    """
    require_types(request, "CreateProcessingJob")
    if lines := [*found, *_problems(request, config, uris, region_of(session))]:
        raise UserError(*lines)
    (source_key, _), (key, output) = uris.items()
    warn_of_outputs({key: output}, request["RoleArn"], config.job.output)
    if session is None:
        print_request(request)
        return None
    s3 = aws_client(session, "s3")
    if names := first_names(s3, output, key):
        raise UserError(
            f"{key}={output}: not empty, the first object is {output}/{names[0]}; choose another "
            "prefix, or delete the objects"
        )
    for each in request["ProcessingInputs"]:
        name = each["InputName"].replace("input", source_key)
        require_objects(s3, each["S3Input"]["S3Uri"], name)
    name = request["ProcessingJobName"]
    sagemaker = aws_client(session, "sagemaker")
    with creating(f"job {name}", f'make sagemaker ARGS="status {name}"'):
        sagemaker.create_processing_job(**request)
    say(f'job {name} created: {what}\n  make sagemaker ARGS="status {name}"')
    return Job(session, name, "Processing")


def _problems(
    request: dict[str, Any], config: LaunchConfig, uris: dict[str, str], region: str | None
) -> Iterator[str]:
    yield from missing({"job.role": request.get("RoleArn")})
    # Settings that a Processing job does not have.
    for key, value in {
        "target.spot": config.target.spot,
        "job.code": config.job.code,
        "resume_from": config.resume_from,
    }.items():
        if value:
            yield f"{key}: not available for Processing jobs; drop it"
    for member in _OURS:
        if member_of(config.job.request, member) is not None:
            yield f"job.request.{member}: set by the launcher; drop it"
    (source_key, source), (key, output) = uris.items()
    # The output of a job must not become input of the next one.
    if f"{output}/".startswith(f"{source}/"):
        yield f"{key}={output}: must not be inside {source_key}={source}; choose another prefix"
    image, kind = "AppSpecification.ImageUri", f"{_CLUSTER}.InstanceType"
    yield from machine_problems(request, config, image, kind, region)
    yield from environment_problems(request)
