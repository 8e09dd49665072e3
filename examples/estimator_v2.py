"""Train on SageMaker with SDK v2's Estimator, whose support ends on 2027-07-06.

    ROLE=ARN IMAGE=URI BUCKET=my-bucket python -m examples.estimator_v2 optim.lr=0.1

The arguments become hyperparameters, which are settings of `make local-train`.
"""

import os
import sys

from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
from sagemaker.utils import name_from_base

from entry_point.job.metrics_line import metric_regexes

name = name_from_base("image-training")
bucket = f"s3://{os.environ['BUCKET']}"
settings = {"data": "folder", **dict(each.split("=", 1) for each in sys.argv[1:])}
metrics = metric_regexes(settings.get("task.name") or settings.get("task", "classification"))
estimator = Estimator(
    image_uri=os.environ["IMAGE"],
    role=os.environ["ROLE"],
    instance_type="ml.c7i.2xlarge",
    instance_count=1,
    volume_size=50,
    max_run=24 * 3600,
    output_path=f"{bucket}/jobs",
    # What is there is copied to each instance first, so a prefix for each job.
    checkpoint_s3_uri=f"{bucket}/jobs/checkpoints/{name}",
    hyperparameters=settings,
    metric_definitions=[{"Name": key, "Regex": regex} for key, regex in metrics.items()],
    disable_profiler=True,
    debugger_hook_config=False,
)
photos = TrainingInput(f"{bucket}/photos/", input_mode="FastFile")
estimator.fit({"training": photos}, wait=False, job_name=name)
print(estimator.latest_training_job.name)  # noqa: T201
