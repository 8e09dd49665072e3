"""The commands of `python -m entry_point` in this process; each returns its exit code."""

from functools import partial

from entry_point.__main__ import run

check_dataset = partial(run, "check-dataset")
compare = partial(run, "compare")
evaluate = partial(run, "evaluate")
optimize = partial(run, "optimize")
predict = partial(run, "predict")
serve = partial(run, "serve")
show_batch = partial(run, "show-batch")
sweep = partial(run, "sweep")
weights = partial(run, "weights")
