"""What TensorBoard shows of a run that was started again."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from entry_point.metrics_line import METRICS
from entry_point.training.metrics_log import MetricsLog

(LOSS,) = (name for name, key in METRICS.items() if key == "loss")


def shown(folder: Path) -> dict[int, float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {scalar.step: scalar.value for scalar in events.Scalars(LOSS)}


def test_a_run_that_begins_anew_hides_the_curves_of_the_one_before(tmp_path: Path) -> None:
    for losses in ((5.0, 4.0, 3.0), (2.0, 1.0)):
        log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
        for step, loss in enumerate(losses):
            log.add({"epoch": 0, "step": step, "loss": loss})
        log.close()
    assert shown(tmp_path / "tensorboard") == {0: 2.0, 1: 1.0}
