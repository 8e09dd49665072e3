"""How the container's first process asks the ranks to stop, and hears that they did.

A file rather than a signal: torchrun kills its workers 30 s after a signal, whatever they write.
"""

STOP_FILE = "TRAIN_STOP_FILE"
"""Environment variable that names the file whose existence asks the job to stop."""
STOPPED = "stopped"
"""What the first rank writes into that file once its last checkpoint is safe."""
