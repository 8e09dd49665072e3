"""What `job.code=true` sends."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.job.program import UserError
from launch import own_code
from launch.own_code import OwnCode, collect, split_code


def write(folder: Path, *names: str, content: bytes = b"x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_only_visible_files_of_the_two_folders_are_sent(tmp_path: Path) -> None:
    sent = ("configs/train.yaml", "project/__init__.py", "project/deep/er/net.py")
    hidden = ("project/.env", "project/.git/config", "project/__pycache__/a.pyc", "project/b.pyc")
    write(tmp_path, *sent, *hidden, "entry_point/train.py", "secret.txt")
    assert sorted(collect(tmp_path).files) == sorted(sent)


def test_links_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "project/__init__.py", "shared/b.py")
    (tmp_path / "project/shared").symlink_to(tmp_path / "shared")
    assert sorted(collect(tmp_path).files) == ["project/__init__.py", "project/shared/b.py"]


def test_too_much_to_be_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "project/a.py", "project/weights.pt", content=bytes(600_000))
    monkeypatch.setattr(own_code, "MAX_BYTES", 1 << 20)
    with pytest.raises(UserError, match=r"project/weights\.pt: with this file, .* 1 MB"):
        collect(tmp_path)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3})?\.py", fullmatch=True), st.binary()))
def test_what_is_written_is_what_was_collected(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("code")
    code = OwnCode({f"project/{name}": content for name, content in files.items()})
    code.write(folder)
    code.write(folder)
    found = {p.relative_to(folder / "project").as_posix(): p for p in folder.rglob("*.py")}
    assert {name: path.read_bytes() for name, path in found.items()} == files


def test_docker_train_takes_the_key_of_the_launch_config() -> None:
    code, rest = split_code(["job.code=true", "trainer.epochs=1"])
    assert code and "project/__init__.py" in code.files and "configs/train.yaml" in code.files
    assert rest == ["trainer.epochs=1"]
    assert split_code(["job.code=true", "job.code=false"]) == (None, [])
    with pytest.raises(UserError, match=r"job\.code=yes: must be true or false"):
        split_code(["job.code=yes"])
