"""How a program ends for each kind of error: its line, its exit code, and the reason it leaves."""

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.job import ranks
from entry_point.job.program import LIMIT, ExitCode, failure_file, failure_text, run_program
from entry_point.job.run_folder import ContractError


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize("kind", [ConfigError, ContractError, DataError])
def test_an_error_that_a_user_can_fix_is_one_line_and_the_reason(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = []

    def leave(reason: str) -> bool:
        reasons.append(reason)
        return True

    assert run_program("train", lambda: raising(kind("lr=0: no")), leave) == ExitCode.USAGE
    assert capsys.readouterr().err == "train: lr=0: no\n"
    assert reasons == ["lr=0: no"]


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


@pytest.mark.parametrize("error", [KeyError("lost"), OSError(errno.EIO, "lost")])
def test_any_other_error_keeps_its_traceback_which_is_the_reason(
    error: Exception, tmp_path: Path
) -> None:
    path = tmp_path / "output" / "failure"
    with pytest.raises(type(error), match="lost"):
        run_program("train", lambda: raising(error), failure_file(path))
    reason = path.read_text()
    assert reason.startswith(type(error).__name__) and "in raising" in reason


def test_ctrl_c_ends_without_output(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_program("predict", lambda: raising(KeyboardInterrupt()))
    assert code == ExitCode.INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")


def test_a_reason_that_another_rank_has_reported_is_not_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = ranks.Supervisor(tmp_path)
    for reason in ("first", "second"):
        program = partial(raising, DataError(reason))
        assert run_program("train", program, supervisor.report_reason) == ExitCode.USAGE
    assert capsys.readouterr().err == "train: first\n"
    assert (tmp_path / "reason").read_text() == "first"


def test_an_error_that_follows_from_another_ranks_has_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = RuntimeError("Connection closed by peer")
    assert run_program("train", lambda: raising(lost), lambda _: False) == ExitCode.FAILED
    assert capsys.readouterr() == ("", "")


def test_a_failure_from_before_is_removed_and_success_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "failure"
    path.write_text("of the last attempt")
    failure_file(path)
    assert not list(tmp_path.iterdir())


def test_a_failure_that_does_not_fit_on_the_disk_leaves_no_empty_file(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path; "
        "from entry_point.job.program import failure_file; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "failure_file(Path(sys.argv[1]))('the disk is full')"
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
    failure_file(path)(text)
    assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == ["failure"]


def test_a_reason_with_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "failure"
    failure_file(path)(os.fsdecode(b"caf\xe9.jpg: is damaged"))
    assert path.read_text() == "caf\\udce9.jpg: is damaged"
