"""What a training job's description says, in lines for a person."""

from typing import Any

FINAL = ("Completed", "Failed", "Stopped")


def summary(description: dict[str, Any]) -> list[str]:
    """Where a job is or how it ended: state, results, seconds billed, the reason of a failure."""
    name = description["TrainingJobName"]
    lines = [
        f"{name}: {description['TrainingJobStatus']} ({description.get('SecondaryStatus', '')})"
    ]
    resources = description.get("ResourceConfig", {})
    if resources.get("InstanceType"):
        lines.append(f"machines: {resources['InstanceCount']} x {resources['InstanceType']}")
    for metric in description.get("FinalMetricDataList", []):
        lines.append(f"{metric['MetricName']}: {metric['Value']:.6g}")
    lines += _time_lines(description)
    if checkpoints := description.get("CheckpointConfig", {}).get("S3Uri"):
        lines.append(f"checkpoints: {checkpoints}")
    if model := description.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        lines.append(f"model: {model}    make sagemaker-download ARGS={name}")
    if reason := description.get("FailureReason"):
        lines.append(f"reason: {reason}")
    return lines


def _time_lines(description: dict[str, Any]) -> list[str]:
    trained = description.get("TrainingTimeInSeconds")
    billed = description.get("BillableTimeInSeconds")
    if trained is None or billed is None:
        return []
    line = f"trained {trained} s, billed {billed} s"
    if description.get("EnableManagedSpotTraining") and trained:
        line += f": spot saved {100 * (1 - billed / trained):.0f} %"
    return [line]
