"""Commands for the host: set up, then start the job locally, in a container or on SageMaker."""

import sys


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
