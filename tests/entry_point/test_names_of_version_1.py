"""Commands by the names of their modules, as scripts that were written for version 1 start them."""

import runpy
import sys

import pytest

from entry_point import __main__ as commands


@pytest.mark.parametrize(
    ("module", "command"),
    [
        *((name, name.replace("_", "-")) for name in ("check_dataset", "compare", "evaluate")),
        *((name, name.replace("_", "-")) for name in ("optimize", "predict", "serve")),
        *((name, name.replace("_", "-")) for name in ("show_batch", "sweep", "weights")),
        ("container", ""),
    ],
)
def test_a_module_runs_its_command_and_ends_with_its_exit_code(
    module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, Python would import the module, do nothing, and exit with 0."""
    ran = list[list[str]]()

    def main(arguments: list[str]) -> int:
        ran.append(arguments)
        return 7

    monkeypatch.setattr(commands, "main", main)
    monkeypatch.setattr("entry_point.job.program.end_process", sys.exit)
    monkeypatch.setattr(commands, "end_process", sys.exit)
    monkeypatch.setattr(sys, "argv", ["program", "predict", "a=1"])
    monkeypatch.delitem(sys.modules, f"entry_point.{module}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"entry_point.{module}", run_name="__main__")
    assert ended.value.code == 7
    assert ran == [[*([command] if command else []), "predict", "a=1"]]
