"""What the fork server of `tests/forkserver.py` does once, for all programs that it starts.

Programs import some libraries late, which may then take a second of each job: so those, too. And
Hydra's parser and its plugins are faster from their second use on.
"""

import gc

import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.font_manager
import matplotlib.ticker  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

import entry_point.data.packing.index_folder
import entry_point.data.packing.pack
import entry_point.prediction_table
import entry_point.serving.server
import entry_point.training.trainer  # noqa: F401
from entry_point.config.train_config import load_train_config
from tests.composed import remember_compositions
from tests.entry_point.training.training_jobs import TINY

remember_compositions()
load_train_config([*TINY, "data.root=x"])

# The collector of a forked process would copy all of it.
gc.freeze()
