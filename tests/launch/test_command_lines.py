"""A misspelt flag or command is named before anything happens; help is fast."""

import json
import subprocess
import sys

import pytest

from entry_point.__main__ import COMMANDS
from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import ROOT


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train", "--wiat", "a=1"], "unrecognized arguments: --wiat"),
        (["trian"], "invalid choice: 'trian' (choose from 'train'"),
    ],
)
def test_a_misspelt_flag_or_command_is_named(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sagemaker.main(arguments)
    assert ended.value.code == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


HELP = """
import contextlib, importlib, io, json, sys
told = {}
for program in sys.argv[1:]:
    name, *words = program.split()
    is_package = name in ("entry_point", "launch.sagemaker")
    module = importlib.import_module(f"{name}.__main__" if is_package else name)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        module.main([*words, "--help"])
    told[program] = output.getvalue(), "torch" in sys.modules
print(json.dumps(told))
"""
PROGRAMS = {
    "entry_point": ["docker run IMAGE [COMMAND]", *(f"\n  {each} " for each in COMMANDS)],
    **{f"entry_point {name}": [f"python -m entry_point {name}"] for name in COMMANDS},
    **{f"launch.{name}": [f"python -m launch.{name}"] for name in ("docker", "image", "local")},
    **{f"launch.{name}": ["ARGS="] for name in ("setup_aws", "sagemaker.hosting")},
    "launch.sagemaker": [
        "python -m launch.sagemaker",
        *(f"\n{each} " for each in sagemaker.COMMANDS),
    ],
}
# Lines with a setting's default, of some of these.
SETTINGS = {
    **dict.fromkeys(("entry_point train", "launch.local"), ("data.root=", "trainer.epochs=5 ")),
    "entry_point sweep": ("data.root=", "trainer.epochs=5 "),
    "entry_point predict": ("input=null", "csv=false"),
    "entry_point serve": ("serve.max_batch=",),
    "entry_point optimize": ("source=", "quality=95 "),
    "entry_point check-dataset": ("root=(required)",),
}


def test_help_of_every_program_has_its_usage_and_settings_and_imports_no_torch() -> None:
    command = [sys.executable, "-c", HELP, *PROGRAMS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for program, (told, has_torch) in json.loads(done.stdout).items():
        assert all(part in told for part in PROGRAMS[program]) and not has_torch, program
        for setting in SETTINGS.get(program, ()):
            (line,) = (each for each in told.splitlines() if each.startswith(f"  {setting}"))
            assert len(line) <= 100 and line[37:].strip()
