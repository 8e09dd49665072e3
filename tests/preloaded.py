"""What the fork server of `tests/forkserver.py` imports once, for all programs that it starts."""

import gc

gc.disable()
import entry_point.optimize
import entry_point.predict
import entry_point.serving.server_process
import entry_point.training.trainer  # noqa: F401

# The collector of a forked process would copy all of it.
gc.freeze()
gc.enable()
