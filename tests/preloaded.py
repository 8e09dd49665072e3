"""What the fork server of `tests/forkserver.py` imports once, for all programs that it starts."""

import gc

import entry_point.data.packing.index_folder
import entry_point.data.packing.pack
import entry_point.prediction_table
import entry_point.serving.server
import entry_point.training.trainer  # noqa: F401

# The collector of a forked process would copy all of it.
gc.freeze()
