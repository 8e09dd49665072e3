"""How a program ends for each kind of error: its line, its exit code, and the reason it leaves."""

import errno
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.job.program import LIMIT, ExitCode, failure_text, leave_reason, run_program
from entry_point.job.run_folder import ContractError


def raising(error: BaseException) -> int:
    raise error


def test_exit_codes_are_the_numbers_that_scripts_and_platforms_read() -> None:
    """Other tests name them."""
    assert {code.name: int(code) for code in ExitCode} == {
        "FINISHED": 0,
        "FAILED": 1,
        "USAGE": 2,
        "STOPPED": 75,
        "INTERRUPTED": 130,
        "NO_READER": 141,
        "TERMINATED": 143,
    }


@pytest.mark.parametrize("kind", [ConfigError, ContractError, DataError])
def test_an_error_that_a_user_can_fix_is_one_line_and_the_reason(
    kind: type[Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = tmp_path / "failure"
    assert run_program("train", lambda: raising(kind("lr=0: no")), failure) == ExitCode.USAGE
    assert capsys.readouterr().err == "train: lr=0: no\n"
    assert failure.read_text() == "lr=0: no"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "Permission denied"),
        (errno.ENOSPC, "No space left on device: free up space and run the same command again"),
    ],
)
def test_an_error_about_a_file_is_one_line_that_names_it(
    number: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, reason.partition(":")[0], "/data/a.jpg")
    assert run_program("predict", lambda: raising(error)) == ExitCode.FAILED
    assert capsys.readouterr().err == f"predict: /data/a.jpg: {reason}\n"


def test_a_full_disk_is_answered_with_what_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/runs/x")
    run_program("train", lambda: raising(error), again=lambda: "the same command with name=x")
    advice = "free up space and run the same command with name=x again\n"
    assert capsys.readouterr().err.endswith(advice)


def test_a_machine_without_a_temporary_folder_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full or a read-only disk."""
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert run_program("serve", lambda: len(tempfile.gettempdir())) == ExitCode.FAILED
    line = "No usable temporary directory found in ['/proc/none']"
    advice = "free up space, or set TMPDIR to a folder that can be written"
    assert capsys.readouterr().err == f"serve: {line}: {advice}\n"


@pytest.mark.parametrize("error", [KeyError("lost"), OSError(errno.EIO, "lost")])
def test_any_other_error_keeps_its_traceback_which_is_the_reason(
    error: Exception, tmp_path: Path
) -> None:
    path = tmp_path / "output" / "failure"
    with pytest.raises(type(error), match="lost"):
        run_program("train", lambda: raising(error), path)
    reason = path.read_text()
    assert reason.startswith(type(error).__name__) and "in raising" in reason


def test_ctrl_c_ends_without_output(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_program("predict", lambda: raising(KeyboardInterrupt()))
    assert code == ExitCode.INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")


def test_a_reason_that_another_rank_has_reported_is_not_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = tmp_path / "failure"
    for error in (DataError("first"), DataError("second"), RuntimeError("Connection closed")):
        assert run_program("train", partial(raising, error), failure)
    assert capsys.readouterr() == ("", "train: first\n")
    assert failure.read_text() == "first"


def test_a_failure_that_does_not_fit_on_the_disk_leaves_no_empty_file(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path; "
        "from entry_point.job.program import leave_reason; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "leave_reason(Path(sys.argv[1]), 'the disk is full')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "failure")], check=True)
    assert not list(tmp_path.iterdir())


def test_the_failure_file_starts_with_the_error_and_fits_the_limit(tmp_path: Path) -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError("the reason")

    try:
        deep(50)
    except ValueError as error:
        text = failure_text(error)
    assert text.startswith("ValueError: the reason")
    assert 'raise ValueError("the reason")' in text
    assert len(text) <= LIMIT
    path = tmp_path / "output" / "failure"
    leave_reason(path, text)
    assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == ["failure"]


def test_a_reason_with_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "failure"
    leave_reason(path, os.fsdecode(b"caf\xe9.jpg: is damaged"))
    assert path.read_text() == "caf\\udce9.jpg: is damaged"
