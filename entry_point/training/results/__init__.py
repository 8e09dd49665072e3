"""A run's results: on the console, in files, and in experiment trackers.

1. `times` measures each step and its wait for data; `profiling` records some steps with torch.
2. `step_log` checks the loss of each step, and makes records of steps to log; `log` writes them as
   lines and to metrics.jsonl beside the checkpoints, which also has those of the run's earlier
   processes.
3. `totals` sums up a whole run and judges whether it waits for data. `summary` makes the closing
   lines, `pictures` draws samples and curves, and `report` writes the page.
4. `loggers` opens the trackers: `tensorboard_logger`, `mlflow_logger`, `wandb_logger` or yours.
"""
