"""How the job's process ends, for whoever started it."""

FINISHED = 0
"""Trained to the end; everything is in its place."""
FAILED = 1
"""Something broke; output/failure says what."""
USAGE = 2
"""The configuration or the data set is wrong; one line says which key and what is allowed."""
STOPPED = 75
"""Stopped on request with a checkpoint written; the same command goes on from there.
sysexits.h calls it EX_TEMPFAIL: try again later."""
TERMINATED = 143
"""Ended by SIGTERM where there is nothing to save, as a shell counts it: 128 + 15."""
