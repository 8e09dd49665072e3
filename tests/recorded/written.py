"""Writes a layout with the code of one tree: `python -m tests.recorded.written NAME FOLDER FILE`.

FILE gets the overrides of a training that reads it, as JSON. `compare_commits` runs it in two
trees: each packs in its own format.
"""

import json
import sys
from pathlib import Path

from tests.recorded.layouts import write_layout


def main(name: str, folder: str, file: str) -> None:
    """Write the layout into the new folder, then the file."""
    Path(file).write_text(json.dumps(write_layout(name, Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
