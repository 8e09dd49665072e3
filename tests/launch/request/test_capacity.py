"""Newer ways to ask for machines: in the request, and their mistakes as one line each."""

import pytest

from launch.request.job_config import training_problems
from launch.request.launch_errors import LaunchError
from tests.launch.minimal_job import built, checked

TYPES = "target.instance_types=[ml.c7i.2xlarge,ml.m7i.2xlarge]"
PLAN = "target.training_plan=arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine"
VPC = ["job.subnets=[subnet-1]", "job.security_groups=[sg-1]"]
LUSTRE = "job.channels.training={file_system:fs-0123456789abcdef0,type:FSxLustre,path:/x/photos}"
SERVER = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/mine"


def test_instance_types_are_tried_in_their_order() -> None:
    sent = checked(TYPES, "target.instance_count=2")["ResourceConfig"]
    preferred = [{"InstanceType": "ml.c7i.2xlarge"}, {"InstanceType": "ml.m7i.2xlarge"}]
    assert sent == {
        "InstanceCount": 2,
        "InstancePreferences": preferred,
        "VolumeSizeInGB": 50,
    }


def test_every_setting_arrives_in_its_member() -> None:
    sent = checked(
        PLAN,
        "target.health_check=true",
        "job.remote_debug=true",
        "job.session_chaining=true",
        f"job.mlflow={SERVER}",
        LUSTRE,
        *VPC,
    )
    assert sent["ResourceConfig"]["TrainingPlanArn"] == PLAN.partition("=")[2]
    assert sent["InfraCheckConfig"] == {"EnableInfraCheck": True}
    assert sent["RemoteDebugConfig"] == {"EnableRemoteDebug": True}
    assert sent["SessionChainingConfig"] == {"EnableSessionTagChaining": True}
    assert sent["Environment"] == {"MLFLOW_TRACKING_URI": SERVER}
    assert sent["InputDataConfig"] == [
        {
            "ChannelName": "training",
            "DataSource": {
                "FileSystemDataSource": {
                    "FileSystemId": "fs-0123456789abcdef0",
                    "FileSystemAccessMode": "ro",
                    "FileSystemType": "FSxLustre",
                    "DirectoryPath": "/x/photos",
                }
            },
            "InputMode": "File",
        }
    ]


def test_the_batch_must_fit_every_instance_type() -> None:
    types = "target.instance_types=[ml.g6.4xlarge,ml.g6.48xlarge]"
    _, config = built("target=gpu", types)
    (line,) = training_problems(["trainer.batch_size=4"], (), config.target)
    assert "the 8 ranks that share it on 1 x ml.g6.48xlarge" in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([TYPES.replace("m7i", "c7i")], "each type may be named once"),
        ([TYPES.replace("m7i.2x", "zz.2x")], "target.instance_types[1]=ml.zz.2xlarge: must be one"),
        ([TYPES.replace("m7i", "g6")], "target.instance_types[1]=ml.g6.2xlarge: must be a CPU"),
        (
            [TYPES, "target.instance_groups=[{name:a,instance_type:ml.c7i.large}]"],
            "not available with instance groups",
        ),
        ([TYPES, "target.spot=true"], "not available for spot jobs; drop it or target.spot"),
        (
            ["target.instance_types=[a,b,c,d,e,f]"],
            "target.instance_types has 6 entries, must have at most 5",
        ),
        (["target.training_plan=mine"], "target.training_plan=mine: must be the ARN of a training"),
        ([PLAN, TYPES], "is for one type; set target.instance_type instead"),
        ([PLAN, "target.spot=true"], "reserves capacity, so it excludes spot"),
        (["job.remote_debug=true", "job.network_isolation=true"], "job.remote_debug=true: needs"),
        (["job.mlflow=mine"], "job.mlflow=mine: must be the ARN of an MLflow server or app"),
        ([f"job.mlflow={SERVER}", "job.network_isolation=true"], "needs the network"),
        ([LUSTRE], "is reached through a VPC; set job.subnets"),
        ([LUSTRE.replace("FSxLustre", "S3Prefix"), *VPC], "must be EFS or FSxLustre"),
        ([LUSTRE.replace("fs-0", "sf-0"), *VPC], "job.channels.training.file_system=sf-0123456789"),
        (["job.channels.training={mode:File}"], "must have s3 or file_system, and not both"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], line: str) -> None:
    with pytest.raises(LaunchError) as caught:
        checked(*arguments)
    assert line in str(caught.value)
