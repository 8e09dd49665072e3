"""The image under other launchers than SageMaker: one container per host, variables only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import LABEL, OVERRIDES, Job
from tests.launch.real_engine.test_container_training import STEPS, metrics

NETWORK = "other-launchers"


@pytest.fixture
def network(engine: Engine) -> Iterator[str]:
    engine.call("network", "create", "--internal", f"--label={LABEL}", NETWORK)
    yield NETWORK
    engine.call("network", "rm", NETWORK)


def pod_variables(rank: int) -> list[str]:
    """What a PyTorchJob sets."""
    return [
        "WORLD_SIZE=2",
        f"RANK={rank}",
        f"MASTER_ADDR={'localhost' if rank == 0 else 'host-0'}",
        "MASTER_PORT=23456",
    ]


def node_variables(index: int, main_address: str) -> list[str]:
    """What AWS Batch sets, and what examples/aws_batch.json makes of it."""
    address = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    return [
        "AWS_BATCH_JOB_NUM_NODES=2",
        f"AWS_BATCH_JOB_NODE_INDEX={index}",
        "PET_NNODES=$AWS_BATCH_JOB_NUM_NODES",
        "PET_NODE_RANK=$AWS_BATCH_JOB_NODE_INDEX",
        "PET_MASTER_PORT=29400",
        *([f"{address}={main_address}", f"PET_MASTER_ADDR=${address}"] if index else []),
        *([] if index else ["PET_MASTER_ADDR=127.0.0.1"]),
    ]


@pytest.mark.parametrize("launcher", ["pods", "batch"])
def test_two_containers_train_together(
    network: str, launcher: str, job: Job, prebuilt_image: str, photos: Path
) -> None:
    engine, address = job.engine, ""
    for host in (0, 1):
        root = job.folder / f"host-{host}"
        root.mkdir(parents=True)
        variables = pod_variables(host) if launcher == "pods" else node_variables(host, address)
        container = engine.call(
            "run",
            "--detach",
            f"--label={LABEL}",
            f"--network={network}",
            f"--network-alias=host-{host}",
            f"--volume={root}:/opt/ml",
            f"--volume={photos}:/photos:ro",
            *(f"--env={variable}" for variable in variables),
            prebuilt_image,
            "train",
            "data.root=/photos",
            *OVERRIDES,
        )
        job.containers.append(container)
        inspected = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = address or engine.call("inspect", "--format", inspected, container)
    codes = [job.wait(container) for container in job.containers]
    first, second = (job.log(container) for container in job.containers)
    assert codes == [0, 0], first + second
    assert "2 x CPU" in first
    # Two hosts share each batch, so the number of steps is that of one host.
    steps = [int(str(line["step"])) for line in metrics(job.folder / "host-0") if "loss" in line]
    assert max(steps) == STEPS
    assert (job.folder / "host-0/model/model.safetensors").exists()
    assert not (job.folder / "host-1/model/model.safetensors").exists()
