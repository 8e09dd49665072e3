"""Where tasks that were written for version 1.0 find `Metric`."""

from entry_point.training.tasks.task import Metric

__all__ = ["Metric"]
