"""The name of `python -m entry_point` in version 1."""

import sys

from entry_point.__main__ import main
from entry_point.job.program import end_process

if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
