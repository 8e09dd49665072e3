"""What the launch commands share: their error, and flags of which a misspelt one is named.

Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from entry_point.config.config_errors import near
from entry_point.contract.program import UserError


class CommandLine(argparse.ArgumentParser):
    """A parser of names, overrides and flags in any order; its errors are one line."""

    def __init__(self, prog: str, text: str | None = None) -> None:
        """`text` is the program's description, in lines."""
        self._flags: list[str] = []
        lines = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=text, allow_abbrev=False, formatter_class=lines)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self._flags += action.option_strings
        return action

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; exits with code 2 for one that is not known."""
        for each in arguments:
            if each.startswith("-") and each not in self._flags:
                known = ", ".join(self._flags)
                self.error(f"{each}: no such flag; must be one of {known}{near(each, self._flags)}")
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class LaunchError(UserError):
    """A job, image or upload that cannot be started. One line for each problem."""
