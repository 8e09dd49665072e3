"""A job runs the code that was sent with it, in every process, and refuses any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entry_point.contract import own_code
from entry_point.contract.platform_files import ContractError
from entry_point.contract.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]
# Starts a second process, as the supervisor does.
PROGRAM = """
import subprocess, sys
import project.answer
from entry_point.config.compose import CONFIGS
print(project.answer.TEXT, CONFIGS)
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, "-m", "show", "again"]).returncode)
"""


def sent_code(run: RunFolder, **files: str) -> str:
    """Fill the channel; returns the hash."""
    contents = {name: text.encode() for name, text in files.items()}
    for name, content in contents.items():
        path = run.channels / own_code.CHANNEL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return own_code.content_hash(contents)


def start(folder: Path, ml_root: Path, **environment: str) -> str:
    """Run PROGRAM in a folder with a `project` of its own; returns its output."""
    start = "import pathlib, runpy; from entry_point.contract import own_code;"
    start += f"own_code.put_first(pathlib.Path({str(ml_root)!r}, 'input/data'));"
    start += "runpy.run_module('show')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_process_uses_the_code_that_was_sent(tmp_path: Path) -> None:
    image, run = tmp_path / "image", RunFolder(tmp_path / "ml")
    (image / "project").mkdir(parents=True)
    (image / "project/__init__.py").touch()
    (image / "project/answer.py").write_text("TEXT = 'of the image'")
    (image / "show.py").write_text(PROGRAM)
    code = {"project/answer.py": "TEXT = 'sent'", "project/__init__.py": "", "show.py": PROGRAM}
    sent = sent_code(run, **code)
    assert "of the image" in start(image, run.root)
    configs = run.channels / "code" / "configs"
    assert start(image, run.root, OWN_CODE=sent).splitlines() == [f"sent {configs}"] * 2


def test_the_hash_depends_on_names_and_contents_alone() -> None:
    one = own_code.content_hash({"a": b"1", "b": b"2"})
    assert one == own_code.content_hash({"b": b"2", "a": b"1"})
    others = [{"a": b"12", "b": b""}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1", "b": b"3"}]
    assert len({one, *map(own_code.content_hash, others)}) == 5


def test_code_other_than_what_was_sent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    monkeypatch.setenv(own_code.HASH, "0" * 16)
    with pytest.raises(ContractError, match="the job has no channel code, must have the folder"):
        own_code.require_sent(run.channels)
    sent = sent_code(run, **{"project/answer.py": "x = 1"})
    with pytest.raises(ContractError, match=f"must hold the code with the hash 0+ .* has {sent}"):
        own_code.require_sent(run.channels)
    monkeypatch.setenv(own_code.HASH, sent)
    own_code.require_sent(run.channels)


def test_a_channel_named_code_is_data_unless_the_launcher_sent_code(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    sent_code(run, **{"train/a/1.jpg": "x"})
    own_code.require_sent(run.channels)
