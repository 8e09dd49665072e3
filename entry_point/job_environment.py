"""What the container's first process tells the ranks, by environment variables."""

STARTED = "TRAIN_STARTED"
"""Seconds since the epoch when the first process began."""
STOP_FILE = "TRAIN_STOP_FILE"
"""The file whose existence asks the job to stop. A file rather than a signal: torchrun kills its
workers 30 s after a signal, whatever they write."""
STOPPED = "stopped"
"""What the first rank writes into that file once its last checkpoint is safe."""
