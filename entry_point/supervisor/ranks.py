"""`torchrun` without its own traceback: the failed rank has already printed the reason."""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from entry_point.contract import exit_codes


def main() -> int:
    """Command line: the options of torchrun."""
    try:
        run.main()
    except ChildFailedError:
        return exit_codes.FAILED
    return exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main())
