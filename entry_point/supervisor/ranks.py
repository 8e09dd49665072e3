"""`torchrun` without its traceback: the rank that failed has said why, in a line or in a traceback
of its own, and the log has which one it was."""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from entry_point.contract import exit_codes


def main() -> int:
    """Command line: torchrun's."""
    try:
        run.main()
    except ChildFailedError:
        return exit_codes.FAILED
    return exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main())
