"""The CreateProcessingJob request that predicts images, and its checks; makes no AWS call.

Each host writes one part of the predictions below the same S3 prefix; no merge is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from launch.request import config_keys, processing_request
from launch.request.launch_config import LaunchConfig
from launch.request.processing_request import REPLICATED, ROOT, SHARDED, s3_input

RESERVED = ("model_dir", "part")
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")


@dataclass(frozen=True)
class Prediction:
    """What one job predicts. The S3 prefixes do not end in a slash."""

    model: str | None
    """S3 URI of model.tar.gz; None if it is not known."""
    input: str
    """A prefix, or a table."""
    images: str | None
    """Prefix that the table's paths start from."""
    output: str
    is_packed: bool
    """Whether the input is a packed dataset, which each host needs all of."""
    overrides: Sequence[str]
    """Those of configs/predict.yaml."""

    @property
    def is_table(self) -> bool:
        return self.input.lower().endswith(TABLES)


def build(config: LaunchConfig, wanted: Prediction, name: str) -> dict[str, Any]:
    """The request. Of a folder's images, each host gets a share; of all else, everything."""
    # Damage is in the column `error`, and must not cost the other predictions.
    arguments = ["predict", "allow_bad=true", *wanted.overrides]
    if wanted.is_table:
        inputs = [s3_input("input", wanted.input, REPLICATED)]
        arguments.append(f"input='{ROOT}/input/{PurePosixPath(wanted.input).name}'")
    else:
        distribution = REPLICATED if wanted.is_packed else SHARDED
        inputs = [s3_input("input", f"{wanted.input}/", distribution)]
    if wanted.model:
        inputs.append(s3_input("model", wanted.model, REPLICATED))
        arguments.append(f"model_dir='{ROOT}/model/{PurePosixPath(wanted.model).name}'")
    if wanted.images:
        inputs.append(s3_input("images", f"{wanted.images}/", REPLICATED))
        arguments.append(f"images={ROOT}/images")
    return processing_request.build(config, name, inputs, wanted.output, arguments)


def check(
    request: dict[str, Any], config: LaunchConfig, wanted: Prediction, region: str | None
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    processing_request.check(request, config, _problems(wanted), region)


def _problems(wanted: Prediction) -> Iterator[str]:
    if not wanted.model:
        yield f"job.output is missing; {config_keys.HINTS['job.output']}"
    if f"{wanted.output}/".startswith(f"{wanted.input}/"):
        yield f"output_dir={wanted.output}: must not be inside input={wanted.input}"
    if wanted.is_table and not wanted.images:
        yield f"input={wanted.input}: needs images=s3://bucket/prefix, where its paths start"
    if wanted.images and not wanted.is_table:
        yield f"images={wanted.images}: only for a table; drop it"
    yield from processing_request.reserved(wanted.overrides, RESERVED)
