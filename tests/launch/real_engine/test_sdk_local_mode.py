"""Local mode of both SageMaker SDKs trains and serves with the image."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from launch.engine import Engine
from tests.launch.conftest import BUCKET, REGISTRY, ROLE, Aws
from tests.launch.real_engine.engine_jobs import OVERRIDES, PATIENCE_SECONDS, ROOT
from tests.photographs import NAMES

HYPERPARAMETERS = {
    name: value
    for name, _, value in (each.partition("=") for each in (*OVERRIDES, "trainer.report=true"))
}
# What both SDKs need to start without an account.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "SAGEMAKER_VALIDATE_ROLE": "false",
}
V2 = """
import json, sys
from pathlib import Path
from sagemaker.deserializers import JSONDeserializer
from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession
from sagemaker.serializers import IdentitySerializer

image, photos, photo, folder, hosts, port, hyperparameters = sys.argv[1:]
session = LocalSession()
session.config = {"local": {"container_root": folder, "serving_port": int(port)}}
estimator = Estimator(
    image_uri=image, role="arn:aws:iam::123456789012:role/any", instance_count=int(hosts),
    instance_type="local", sagemaker_session=session, output_path=f"file://{folder}/output",
    hyperparameters=json.loads(hyperparameters),
)
estimator.fit({"training": f"file://{photos}"})
serializer, deserializer = IdentitySerializer("image/jpeg"), JSONDeserializer()
predictor = estimator.deploy(1, "local", serializer=serializer, deserializer=deserializer)
try:
    # Not printed: a thread of the SDK prints the container's log meanwhile.
    with open(f"{folder}/answer.json", "w") as file:
        json.dump(predictor.predict(open(photo, "rb").read()), file)
finally:
    predictor.delete_endpoint()
answers = f"file://{folder}/answers"
transformer = estimator.transformer(1, "local", strategy="SingleRecord", output_path=answers)
transformer.transform(f"file://{Path(photo).parent}", content_type="image/jpeg", wait=False)
"""
OURS = """
import sys
from sagemaker.train.configs import InputData
from sagemaker.train.model_trainer import Mode
from launch.notebook import trainer

photos, folder, *overrides = sys.argv[1:]
t = trainer(*overrides)
t.training_mode, t.local_container_root = Mode.LOCAL_CONTAINER, folder
t.compute.instance_type = "local_cpu"
t.hyperparameters["optim.lr"] = "0.0321"
t.train(input_data_config=[InputData(channel_name="training", data_source=photos)])
"""


def run_sdk(environment: str, program: str, *arguments: str) -> str:
    """Run a program in the environment of one SDK; returns its output."""
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs {environment}: python3 -m launch.environment {environment[6:]}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not shutil.which("docker-compose", path=path):
        pytest.skip("needs docker-compose, which requirements/dev.txt brings")
    done = subprocess.run(
        [str(python), "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_local_mode_of_sdk_v2_trains_on_two_hosts_deploys_predicts_and_transforms(
    prebuilt_image: str, photos: Path, tmp_path: Path
) -> None:
    photo = next(photos.rglob("*.jpg"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    arguments = (str(photos), str(photo), str(tmp_path), "2", port)
    hyperparameters = json.dumps(HYPERPARAMETERS)
    run_sdk(".venv-launch-v2", V2, prebuilt_image, *arguments, hyperparameters)
    (prediction,) = json.loads((tmp_path / "answer.json").read_text())["predictions"]
    assert set(prediction["probabilities"]) == set(NAMES)
    answers = {path.name.removesuffix(".out") for path in (tmp_path / "answers").iterdir()}
    assert answers == {path.name for path in photo.parent.iterdir()}


def test_the_notebooks_object_trains_in_local_mode_with_what_was_changed_on_it(
    aws: Aws,
    engine: Engine,
    prebuilt_image: str,
    photos: Path,
    tmp_path: Path,
) -> None:
    uri = f"{REGISTRY}/training:1"
    engine.call("tag", prebuilt_image, uri)
    # A launch refuses a prefix without objects.
    aws.client("s3").put_object(Bucket=BUCKET, Key="photos/cat/1.jpg", Body=b"x")
    overrides = [
        *OVERRIDES,
        f"target.image={uri}",
        f"job.role={ROLE}",
        f"job.output=s3://{BUCKET}/runs",
        f"job.channels.training=s3://{BUCKET}/photos/",
    ]
    output = run_sdk(".venv-launch-v3", OURS, str(photos), str(tmp_path), *overrides)
    (archive,) = tmp_path.rglob("model.tar.gz")
    with tarfile.open(archive) as model:
        (config,) = (name for name in model.getnames() if name.endswith("config.yaml"))
        content = model.extractfile(config)
        assert content is not None and b"lr: 0.0321" in content.read(), output
