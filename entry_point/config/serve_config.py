"""Typed settings of `make serve`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import decode
from entry_point.config.schema import SETTINGS, Count, FilePath, Int, Words

OVERRIDES = "SERVE_OVERRIDES"
"""Environment variable: Hydra overrides. SageMaker passes `serve` without any."""

ORIGIN = re.compile(r"\*|(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
"""What a browser sends as a page's origin, without the port that its scheme has by default; or *
for all."""
DEFAULT_ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
"""SageMaker's variable: the form of the answers. There is only one."""

# SageMaker's environment variables, and the keys that they set.
_PLATFORM = {
    "SAGEMAKER_BIND_TO_PORT": "serve.port",
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": "serve.max_payload_mb",
    "SAGEMAKER_MODEL_SERVER_WORKERS": "serve.workers",
}


@dataclass(config=SETTINGS)
class ServerConfig:
    """The HTTP server: its address, batches and workers."""

    host: str = "0.0.0.0"
    """Address to listen on."""
    port: Int = Field(default=8080, ge=0, le=65535)
    """Port to listen on. 0: any free one."""
    max_batch: Count | None = None
    """Largest number of images that the model gets at once. null: 32 on a GPU, 8 on a CPU, whose
    caches do not hold more."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Type that the model computes in. `bf16`: autocast to bfloat16, for GPUs and
    CPUs that compute in it (AVX-512 BF16, AMX); others take several times as long. Not measured on
    GPUs. Probabilities differ from those of `make predict` in the third digit."""
    max_payload_mb: Int = Field(default=25, ge=1, le=1024)
    """Megabytes (2^20 bytes) of a request's body. Asynchronous endpoints take up to 1024."""
    workers: Int | None = Field(default=None, ge=1, le=64)
    """Threads that run the model. null: one per GPU; on a CPU, one per core, at most 8. Busy
    workers share the cores."""
    origins: Words = Field(default=[])
    """Origins whose pages may send requests from a browser (CORS), such as
    [https://example.com]; [*] allows every page. By default only the server's own page may."""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                message = "must list origins as browsers send them, such as http://localhost:3000 "
                message += "or https://example.com: in lower case, without a path; or be [*]"
                raise ConfigError("serve.origins", self.origins, message)


@dataclass(config=SETTINGS)
class ServeConfig:
    """Answering requests with the model of a finished run."""

    model_dir: FilePath | None = None
    """The `model` folder of a finished run. null: /opt/ml/model in the container, else
    runs/latest/model."""
    serve: ServerConfig = Field(default_factory=ServerConfig)


def load_serve_config(
    overrides: Sequence[str], environment: Mapping[str, str] = os.environ
) -> ServeConfig:
    """Returns the configuration from SageMaker's variables, `SERVE_OVERRIDES` and the command line.

    Later ones win. Raises ConfigError.
    """
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        message = "this server has one model; create the endpoint with single-model mode"
        raise ConfigError("SAGEMAKER_MULTI_MODEL", environment["SAGEMAKER_MULTI_MODEL"], message)
    if (accept := environment.get(DEFAULT_ACCEPT, "")) not in ("", "application/json"):
        raise ConfigError(DEFAULT_ACCEPT, accept, "must be application/json")
    platform = decode({k: environment[n] for n, k in _PLATFORM.items() if environment.get(n)})
    text = environment.get(OVERRIDES, "")
    try:
        own = shlex.split(text)
    except ValueError as error:
        message = f"must be overrides separated by spaces, quoted as in a shell ({error})"
        raise ConfigError(OVERRIDES, text, message) from error
    return load_config("serve", ServeConfig, [*platform, *own, *overrides])
