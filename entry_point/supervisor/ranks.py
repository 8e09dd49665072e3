"""`torchrun` without its own traceback: the failed rank has already printed the reason."""

from __future__ import annotations

import os
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from entry_point.contract import exit_codes
from entry_point.contract.lasting_output import make_output_last
from entry_point.supervisor import hand_over


def main() -> int:
    """Command line: the options of torchrun."""
    make_output_last()
    os.environ[hand_over.PARENT] = str(os.getpid())
    try:
        run.main()
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            if failure.exitcode < 0:  # the ranks that it leaves behind report lost connections
                hand_over.report_death(rank, -failure.exitcode)
        return exit_codes.FAILED
    return exit_codes.FINISHED


if __name__ == "__main__":
    sys.exit(main())
