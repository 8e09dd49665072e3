"""The manifests and the script for other launchers in examples/, and docs/launch.md on them."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.loaders
import pytest
import yaml
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from entry_point.__main__ import COMMANDS
from entry_point.config.train_config import load_train_config
from entry_point.job.hosts import TORCH, TORCHRUN, read_hosts
from entry_point.job.program import ExitCode
from tests.entry_point.training.training_jobs import TINY, read_records
from tests.forked_python import forked_python

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs/launch.md").read_text().split("## Kubernetes, Slurm, AWS Batch\n")[1]
STUBS = {
    "scontrol": "echo 127.0.0.1; echo 127.0.0.2",
    # Starts the command that follows its options as each of two nodes.
    "srun": """
while [[ "$1" == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID="$node" "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "${code:-0}"
""",
}

# The members that Kubeflow Trainer 2.0, 2.1, 2.2 and 2.3 all know: kubectl refuses others.
KNOWN_MEMBERS: dict[str, set[str]] = {
    "TrainingRuntime.spec": {"mlPolicy", "podGroupPolicy", "template"},
    "TrainingRuntime.spec.mlPolicy": {"numNodes", "torch", "mpi"},
    "TrainingRuntime.spec.mlPolicy.torch": set(),
    "TrainingRuntime.spec.template": {"metadata", "spec"},
    "TrainingRuntime.spec.template.spec": {
        *("coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs"),
        *("startupPolicy", "successPolicy", "suspend", "ttlSecondsAfterFinished"),
    },
    "TrainingRuntime.spec.template.spec.failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "TrainJob.spec": {"initializer", "managedBy", "runtimeRef", "suspend", "trainer"},
    "TrainJob.spec.runtimeRef": {"apiGroup", "kind", "name"},
    "TrainJob.spec.trainer": {
        *("args", "command", "env", "image", "numNodes", "numProcPerNode", "resourcesPerNode"),
    },
}


def example(name: str) -> str:
    return (ROOT / "examples" / name).read_text()


def require_training(command: list[str], volumes: list[Any], mounts: list[Any]) -> None:
    """The command is one of the image's, and reads its data from a mount that exists."""
    assert command[0] in COMMANDS
    config, _ = load_train_config(command[1:])
    places = {mount.get("mountPath", mount.get("containerPath")) for mount in mounts}
    assert config.data.root in places
    names = {mount.get("name", mount.get("sourceVolume")) for mount in mounts}
    assert names == {volume["name"] for volume in volumes}


def test_the_table_names_the_variables_that_the_code_reads() -> None:
    lines = re.findall(r"^\| .*`(?:PET_|WORLD).*", SECTION, re.MULTILINE)
    assert [tuple(re.findall(r"`(\w+)`", line)) for line in lines] == [TORCHRUN, TORCH]


def test_the_pods_of_the_manifest_train_in_their_own_folders() -> None:
    runtime, job = yaml.safe_load_all(example("kubernetes.yaml"))
    for each, kind in ((runtime, "TrainingRuntime"), (job, "TrainJob")):
        assert (each["apiVersion"], each["kind"]) == ("trainer.kubeflow.org/v1alpha1", kind)
    assert job["spec"]["runtimeRef"] == {
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    # The trainer looks for these names.
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["name"] == "node" and replicated["template"]["metadata"]["labels"] == label
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "node" and pod["terminationGracePeriodSeconds"] == 120
    assert "command" not in container  # the image's own
    require_training(job["spec"]["trainer"]["args"], pod["volumes"], container["volumeMounts"])
    folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    host, root = job["spec"]["trainer"]["env"]
    assert root["name"] == "ML_ROOT" and root["value"].endswith(f"/$({host['name']})")
    assert "job-completion-index" in host["valueFrom"]["fieldRef"]["fieldPath"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == folders["/runs"]]
    assert root["value"].startswith("/runs/") and "persistentVolumeClaim" in volume


def unknown_members(value: Any, path: str) -> Iterator[str]:
    """The paths of the members that not all releases of the trainer know."""
    if path in KNOWN_MEMBERS and isinstance(value, dict):
        for name, member in value.items():
            if name not in KNOWN_MEMBERS[path]:
                yield f"{path}.{name}"
            yield from unknown_members(member, f"{path}.{name}")


def test_the_manifest_has_only_members_that_every_release_of_the_trainer_knows() -> None:
    manifests = list(yaml.safe_load_all(example("kubernetes.yaml")))
    for each in manifests:
        assert [*unknown_members(each["spec"], f"{each['kind']}.spec")] == []
    # One process of the launcher per host: in 2.0 to 2.3 an integer there is accepted.
    assert manifests[1]["spec"]["trainer"]["numProcPerNode"] == 1


def test_the_job_definition_fits_batchs_service_model_and_its_nodes_find_the_main_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    definition = json.loads(example("aws_batch.json"))
    model = ServiceModel(botocore.loaders.Loader().load_service_model("batch", "service-2"))
    shape = model.operation_model("RegisterJobDefinition").input_shape
    assert ParamValidator().validate(definition, shape).generate_report() == ""
    nodes = definition["nodeProperties"]
    main, others = (each["container"] for each in nodes["nodeRangeProperties"])
    assert (nodes["mainNode"], definition["type"]) == (0, "multinode")
    for container in (main, others):
        require_training(container["command"], container["volumes"], container["mountPoints"])
    assert main["command"] == others["command"] and main["image"] == others["image"]
    assert "/opt/ml" in {mount["containerPath"] for mount in main["mountPoints"]}
    monkeypatch.setenv("AWS_BATCH_JOB_NUM_NODES", f"{nodes['numNodes']}")
    for number, container in enumerate((main, others)):
        monkeypatch.setenv("AWS_BATCH_JOB_NODE_INDEX", f"{number}")
        if number:  # Batch does not set it on the main node itself
            monkeypatch.setenv("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.7")
        variables = {each["name"]: each["value"] for each in container["environment"]}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        hosts = read_hosts(tmp_path)
        assert (hosts.rank, hosts.count) == (number, 2)
        assert hosts.names == (("127.0.0.1", "10.0.0.7")[number],)
        assert variables.keys() - {*TORCHRUN} == ({"ML_ROOT"} if number else set())


@pytest.fixture
def submitted(tmp_path: Path, photo_folder: Path) -> Iterator[Path]:
    """A folder with the script for Slurm, on this test's data, and programs named as Slurm's."""
    script = example("slurm.sh").replace("data.root=/photos", f"data.root={photo_folder}")
    assert str(photo_folder) in script
    (tmp_path / "job.sh").write_text(script.replace("data=folder", " ".join(TINY)))
    (tmp_path / "bin").mkdir()
    for name, content in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{content}")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    # The port of the script is free on a host of their own.
    with forked_python(tmp_path / ".venv/bin/python", isolated=True):
        yield tmp_path


def run_script(folder: Path, nodes: int) -> tuple[int, str]:
    """The exit code and the output of the script."""
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": "node-[0-1]",
    }
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            ["/bin/bash", "job.sh"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=240,
        )
    return done.returncode, (folder / "log").read_text()


def test_the_script_for_slurm_trains_on_two_nodes_together(submitted: Path) -> None:
    code, output = run_script(submitted, 2)
    assert code == ExitCode.FINISHED, output
    assert "2 x CPU" in output
    assert read_records(submitted / "runs/first-try/0")[-1]["step"] == 6
    assert (submitted / "runs/first-try/0/model/model.safetensors").exists()
    assert not (submitted / "runs/first-try/1/model/model.safetensors").exists()
    assert "resuming from" in run_script(submitted, 2)[1]
