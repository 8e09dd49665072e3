"""Typed settings of `make sagemaker-deploy` and `make sagemaker-transform`."""

from dataclasses import dataclass, field


@dataclass
class DeployConfig:
    """An endpoint that answers requests with the model of a training job."""

    name: str | None = None
    """Name of the endpoint. null: the job's name. An existing endpoint is updated without
    downtime."""
    instance_type: str | None = None
    """SageMaker instance type. null: ml.c7i.xlarge, or ml.g6.xlarge if the job trained on GPUs."""
    instance_count: int = 1
    """Number of instances."""
    ami: str | None = None
    """System image of GPU instances. null: the newest, whose driver runs every older CUDA."""
    startup_timeout_s: int = 600
    """Seconds that a container may take to load the model."""
    serverless: bool = False
    """Start containers as requests arrive, and pay only for their time. CPU only."""
    memory_mb: int = 4096
    """`serverless=true`: memory of a container, a multiple of 1024."""
    max_concurrency: int = 10
    """`serverless=true`: number of containers."""
    async_output: str | None = None
    """S3 prefix for answers. The endpoint then queues its requests, and inputs and answers lie in
    S3. `async=` is short for it. null: answer at once."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the container."""


@dataclass
class TransformConfig:
    """Classifying every object below an S3 prefix with the model of a training job."""

    input: str
    """S3 prefix of the images."""
    output: str
    """S3 prefix for the answers: `OUTPUT/KEY.out` for each image."""
    name: str | None = None
    """Name of the transform job. null: the training job's name and the time."""
    instance_type: str | None = None
    """SageMaker instance type. null: ml.c7i.xlarge, or ml.g6.xlarge if the job trained on GPUs."""
    instance_count: int = 1
    """Number of instances. They share the images."""
    accept: str = "application/json"
    """Media type of the answers: application/json, application/jsonlines or text/csv."""
    max_concurrent: int | None = None
    """Requests at a time and instance. null: what the container asks for."""
    max_payload_mb: int = 25
    """Size of the largest image in MB."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the container."""
