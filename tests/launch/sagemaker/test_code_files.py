"""What `job.code=true` sends."""

from pathlib import Path

import pytest

from entry_point.job.program import UserError
from launch import own_code
from launch.own_code import collect, split_code


def write(folder: Path, *names: str, content: bytes = b"x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_only_visible_files_of_the_two_folders_are_sent_and_links_are_followed(
    tmp_path: Path,
) -> None:
    sent = ("configs/train.yaml", "project/__init__.py", "project/deep/er/net.py")
    hidden = ("project/.env", "project/.git/config", "project/__pycache__/a.pyc", "project/b.pyc")
    write(tmp_path, *sent, *hidden, "entry_point/train.py", "secret.txt", "shared/b.py")
    (tmp_path / "project/shared").symlink_to(tmp_path / "shared")
    assert sorted(collect(tmp_path).files) == [*sent, "project/shared/b.py"]


def test_too_much_to_be_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "project/a.py", "project/weights.pt", content=bytes(600_000))
    monkeypatch.setattr(own_code, "MAX_BYTES", 1 << 20)
    with pytest.raises(UserError, match=r"project/weights\.pt: with this file, .* 1 MB"):
        collect(tmp_path)


def test_docker_train_takes_the_key_of_the_launch_config() -> None:
    code, rest = split_code(["job.code=true", "trainer.epochs=1"])
    assert code and "project/__init__.py" in code.files and "configs/train.yaml" in code.files
    assert rest == ["trainer.epochs=1"]
    assert split_code(["job.code=true", "job.code=false"]) == (None, [])
    with pytest.raises(UserError, match=r"job\.code=yes: must be true or false"):
        split_code(["job.code=yes"])
