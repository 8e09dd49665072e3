"""Train on SageMaker with SDK v2's Estimator, whose support ends on 2027-07-06.

    ROLE=ARN IMAGE=URI BUCKET=my-bucket python -m examples.estimator_v2 optim.lr=0.1

The arguments become hyperparameters, which are settings of `make local-train`.
"""

import os
import sys

from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput

from entry_point.job.metrics_line import metric_regexes

bucket = f"s3://{os.environ['BUCKET']}"
settings = {"data": "folder", **dict(each.split("=", 1) for each in sys.argv[1:])}
metrics = metric_regexes(settings.get("task.name", "classification"))
estimator = Estimator(
    image_uri=os.environ["IMAGE"],
    role=os.environ["ROLE"],
    instance_type="ml.c7i.2xlarge",
    instance_count=1,
    volume_size=50,
    base_job_name="image-training",
    max_run=24 * 3600,
    output_path=f"{bucket}/jobs",
    checkpoint_s3_uri=f"{bucket}/jobs/checkpoints",
    # Each job keeps its checkpoints below its own name.
    environment={"CHECKPOINTS_PER_JOB": "true"},
    hyperparameters=settings,
    metric_definitions=[{"Name": name, "Regex": regex} for name, regex in metrics.items()],
    disable_profiler=True,
    debugger_hook_config=False,
)
photos = TrainingInput(f"{bucket}/photos/", input_mode="FastFile")
estimator.fit({"training": photos}, wait=False)
print(estimator.latest_training_job.name)  # noqa: T201
