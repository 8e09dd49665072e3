# project/my_task.py
from entry_point.contract.metrics_line import Metric
from entry_point.training.tasks.classification import Classification


class Alarm(Classification):
    def __init__(self, train, config, device, watched):
        super().__init__(train, config, device)
        self.metrics = [Metric("watched", f"recall of {watched}"), *self.metrics]
        self.watched = self.names.index(watched)

    def measure(self, scores):
        of_it = scores[scores[:, 1] == self.watched]
        share = (of_it[:, 2] == self.watched).double().mean()
        return {**super().measure(scores), "watched": float(share)}
