"""The CreateProcessingJob request that packs a dataset, and its checks; makes no AWS call.

Each host packs its share of the source's objects and writes shards and one part of the index below
the same S3 prefix; `launch.aws.packing_merge` merges the parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.request import processing_request
from launch.request.launch_config import LaunchConfig
from launch.request.processing_request import REPLICATED, ROOT, SHARDED, s3_input

# Overrides that the launcher sets.
RESERVED = ("classes", "merge", "part")


def build(
    config: LaunchConfig, source: str, output: str, overrides: Sequence[str], name: str
) -> dict[str, Any]:
    """The request for one Processing job that packs `source` into `output`.

    Both are S3 prefixes without a slash at the end. `overrides` are those of configs/optimize.yaml.
    """
    inputs = [
        s3_input("input", f"{source}/", SHARDED),
        s3_input("classes", classes_uri(output), REPLICATED),
    ]
    arguments = ["optimize", *overrides, f"classes={ROOT}/classes/classes.txt"]
    return processing_request.build(config, name, inputs, output, arguments)


def check(
    request: dict[str, Any], config: LaunchConfig, overrides: Sequence[str], region: str | None
) -> None:
    """Raise LaunchError with one line for each problem, which names the config key."""
    processing_request.check(request, config, _problems(request, overrides), region)


def classes_uri(output: str) -> str:
    """The list of all class names; the objects of one host may be of some classes only."""
    return f"{output}/classes.txt"


def _problems(request: dict[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    source = request["ProcessingInputs"][0]["S3Input"]["S3Uri"]
    output = request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    if f"{output}/".startswith(source):
        yield f"output={output}: must not be inside source={source}; choose another prefix"
    yield from processing_request.reserved(overrides, RESERVED)
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key == "output_format" and value.strip("'\"") in ("folder", "index"):
            yield f"{override}: must be shards in a Processing job; drop it"
