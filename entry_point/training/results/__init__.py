"""What a run says: on the console, in files, and to trackers.

1. `times` measures each step and how long it waits for data; `profiling` has torch record some
   steps.
2. `step_log` checks the losses of single steps, and turns these into the records that are logged;
   `log` writes them as lines and to metrics.jsonl beside the checkpoints, which has those of the
   run's earlier processes, too.
3. `totals` sums up a whole run and judges whether it waits for data. `summary` says it in words,
   `pictures` draws samples and curves, and `report` makes the page of them.
4. `loggers` is what a tracker must do; `tensorboard_logger`, `mlflow_logger` and `wandb_logger` do.
"""
