"""Prints the settings of a program for `--help`."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from textwrap import shorten

from entry_point.config.checking import json_tree, settings_of
from entry_point.config.config_errors import shown
from entry_point.job.program import ExitCode


def print_settings(schema: type, explained_in: str = "docs/settings.md") -> int:
    """Print a line for each key, its default and its meaning; returns the exit code."""
    sys.stdout.write(f"\nSettings, with their defaults; {explained_in} explains them:\n")
    for key, node in settings_of(json_tree(schema)):
        default = shown(node["default"]) if "default" in node else "(required)"
        meaning = " ".join(node["description"].split()).partition(". ")[0].rstrip(".")
        name = f"  {key}={default}".ljust(36)
        room = max(20, get_terminal_size((100, 24)).columns - len(name) - 1)
        sys.stdout.write(f"{name} {shorten(meaning, room, placeholder=' ...')}\n")
    return ExitCode.FINISHED
