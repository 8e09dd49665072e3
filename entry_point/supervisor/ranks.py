"""`torchrun` without its own traceback: the failed rank has already printed the reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from entry_point.contract import exit_codes
from entry_point.contract.lasting_output import make_output_last
from entry_point.large_imports import end_process, large_imports
from entry_point.supervisor import hand_over

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def main() -> int:
    """Command line: the options of torchrun."""
    make_output_last()
    with large_imports():
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    os.environ[hand_over.PARENT] = str(os.getpid())
    try:
        run.main()
    except ChildFailedError as error:
        _report_death(error.failures)
        return exit_codes.FAILED
    except SignalException as error:
        # torchrun has passed the signal on. If no rank reports an exit code, how this process ends
        # is the reason.
        signal.signal(error.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), error.sigval)
    return exit_codes.FINISHED


def _report_death(failures: Mapping[int, ProcessFailure]) -> None:
    """Report the rank that a signal killed first, if any: the others only lost their connections.

    The failures are in the order of their discovery. After the first, torchrun ends the ranks that
    are left with SIGTERM, and 30 s later with SIGKILL.
    """
    began = min(failure.timestamp for failure in failures.values())
    for place, (rank, failure) in enumerate(failures.items()):
        ended_by_torchrun = failure.exitcode == -signal.SIGTERM or failure.timestamp > began
        if failure.exitcode < 0 and not (place and ended_by_torchrun):
            hand_over.report_death(rank, -failure.exitcode)


if __name__ == "__main__":
    end_process(main())
