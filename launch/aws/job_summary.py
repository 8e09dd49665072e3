"""What a job's description says, in lines for a person."""

from typing import Any

from launch.aws.sagemaker_job import Job


def summary(job: Job, description: dict[str, Any]) -> list[str]:
    """Where a job is or how it ended: state, results, seconds billed, the reason of a failure."""
    state, detail = job.state(description), description.get("SecondaryStatus")
    lines = [f"{job.name}: {state}" + (f" ({detail})" if detail else "")]
    details = _training if job.kind == "Training" else _processing
    lines += details(description)
    for member in ("FailureReason", "ExitMessage"):
        if description.get(member):
            lines.append(f"reason: {description[member]}")
    return lines


def _training(description: dict[str, Any]) -> list[str]:
    lines = _machines(description.get("ResourceConfig", {}))
    for metric in description.get("FinalMetricDataList", []):
        lines.append(f"{metric['MetricName']}: {metric['Value']:.6g}")
    lines += _training_time(description)
    if checkpoints := description.get("CheckpointConfig", {}).get("S3Uri"):
        lines.append(f"checkpoints: {checkpoints}")
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        name = description["TrainingJobName"]
        lines.append(f"model: {model}    make sagemaker-download ARGS={name}")
    return lines


def _processing(description: dict[str, Any]) -> list[str]:
    machines = description.get("ProcessingResources", {}).get("ClusterConfig", {})
    lines = _machines(machines)
    if "ProcessingEndTime" in description and "ProcessingStartTime" in description:
        ran = description["ProcessingEndTime"] - description["ProcessingStartTime"]
        lines.append(f"ran {ran.total_seconds():.0f} s, billed for each machine")
    for output in description.get("ProcessingOutputConfig", {}).get("Outputs", []):
        lines.append(f"output: {output['S3Output']['S3Uri']}")
    return lines


def _machines(resources: dict[str, Any]) -> list[str]:
    if not resources.get("InstanceType"):
        return []
    return [f"machines: {resources['InstanceCount']} x {resources['InstanceType']}"]


def _training_time(description: dict[str, Any]) -> list[str]:
    trained = description.get("TrainingTimeInSeconds")
    billed = description.get("BillableTimeInSeconds")
    if trained is None or billed is None:
        return []
    # The service counts the time once, and bills it for each machine.
    machines = description.get("ResourceConfig", {}).get("InstanceCount", 1)
    each = f" on each of {machines} machines" if machines > 1 else ""
    line = f"trained {trained} s, billed {billed} s{each}"
    if description.get("EnableManagedSpotTraining") and trained:
        line += f": spot saved {100 * (1 - billed / trained):.0f} %"
    return [line]
