"""Exit codes of the programs."""

FINISHED = 0
"""Success: all outputs are written."""
FAILED = 1
"""Something broke; a job's output/failure has the reason."""
USAGE = 2
"""The configuration or the dataset is wrong; one line names the key or file and what is allowed."""
STOPPED = 75
"""Stopped on request with a checkpoint written; the same command resumes.
sysexits.h calls it EX_TEMPFAIL: try again later."""
INTERRUPTED = 130
"""Ended by Ctrl-C, as a shell reports it: 128 + SIGINT."""
NO_READER = 141
"""Nobody reads the output any more, as a shell reports it: 128 + SIGPIPE."""
TERMINATED = 143
"""Ended by SIGTERM with nothing to save, as a shell reports it: 128 + SIGTERM."""
NO_FAILURE = (FINISHED, STOPPED)
