"""Retired settings, values and commands, with their replacements; settings that older versions did
not have.

Spelled as `trainer.onnx` for a key, `augment.name=auto` for one value of a key that stays,
`EXTRAS=onnx` for an extra, by the make target for a command, with `import` before a package; for
the server, a media type, a URL or a variable. Uses the standard library only, as `ConfigError`.
"""

from collections.abc import Mapping
from typing import Any

_ONE_BODY = 'the image itself as the body, or application/json: {"instances": [BASE64, ...]}'

RETIRED = {
    "EXTRAS=onnx": "the recipe ONNX in docs/adapt.md",
    "HOSTS": "`docker run` once per host, with the variables in docs/launch.md (Kubernetes, Slurm, "
    "AWS Batch)",
    "sagemaker-deploy invoke": "`aws sagemaker-runtime invoke-endpoint --endpoint-name NAME "
    "--content-type image/jpeg --body fileb://IMAGE.jpg answer.json`, or the SDK",
    "import entry_point.supervisor": "entry_point.job",
    "base_image": "the digest of the image, which SageMaker keeps with a job",
    "setup-aws ReadBuckets": "ManagedPolicies, with the ARN of a policy that may read the buckets",
    "data.access=stream_by_host": "data.access=stream, with all shards for every host (a "
    "channel of distribution FullyReplicated in mode FastFile, or a shared file system)",
    "job.queue": "the SageMaker SDK's TrainingQueue with the object of launch.notebook.trainer",
    "hydra_overrides_000": "a hyperparameter for each override, optim.lr with the value 0.05",
    "tuning": "the SageMaker SDK's HyperparameterTuner with the object of launch.notebook.trainer, "
    "as in examples/tuner.ipynb",
    "trainer.onnx": "the recipe ONNX in docs/adapt.md",
    "trainer.diagnose=headspace": "the verdict at the end, or compare images/s with those of "
    "trainer.diagnose=one_batch, whose input is in memory",
    "augment.name=auto": "torchvision.transforms.v2.AutoAugment with augment.per=sample (slower)",
    "augment.name=rand": "rand_timm, whose strength m is of 10, or "
    "torchvision.transforms.v2.RandAugment with augment.per=sample (slower)",
    "augment.name=three": "the recipe 3-Augment in docs/samples.md (slower)",
    "multipart/form-data": _ONE_BODY,
    "application/jsonlines": _ONE_BODY,
    "application/x-jsonlines": _ONE_BODY,
    "application/x-ndjson": _ONE_BODY,
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "`Accept: image/png` for masks; else all is JSON",
    "/execution-parameters": "MaxConcurrentTransforms and MaxPayloadInMB of CreateTransformJob",
    "/metrics": "the platform's metrics, and the log's line for each request",
}

NOT_YET = {"val_top_up": None}
"""Settings of `data` that earlier versions did not have, with values for what these did."""

OF_MODELS = ("unfinished",)
"""Keys that version 1 wrote into a model's configuration beside the settings."""


def retired(*spellings: str) -> str:
    """Returns the message for the first of `spellings` that is retired; empty if none is."""
    return next((f"retired: use {RETIRED[each]}" for each in spellings if each in RETIRED), "")


def without_retired(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Returns the settings of a run of an earlier version, without retired ones."""
    left = {}
    for name, value in settings.items():
        key = f"{group}{name}"
        if key not in OF_MODELS and not retired(key, f"{key}={value}"):
            left[name] = without_retired(value, f"{key}.") if isinstance(value, dict) else value
    return left


def with_later(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings of a run of an earlier version, with those that it did not have."""
    data = settings.get("data", {})
    return {**settings, "data": {**NOT_YET, **data}} if isinstance(data, dict) else settings
