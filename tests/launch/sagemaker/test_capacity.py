"""Newer ways to ask for machines, in the request."""

import pytest

from launch.command_line import LaunchError
from tests.launch.minimal_job import checked

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
        "loggers=[mlflow]",
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
    with pytest.raises(LaunchError, match=r"the 8 ranks that share it on 1 x ml\.g6\.48xlarge"):
        checked("target=gpu", types, "trainer.batch_size=4")
