"""A file in the place of weights is named for what it is, with the way out."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.model_folder import ModelError, load_model, unpacked
from entry_point.training.checkpoints import DamagedFileError, load_tensors
from entry_point.training.models import build_model
from tests.entry_point.serving.served_model import write_model
from tests.entry_point.training.tasks.label_sources import CPU

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0d' * 32}\nsize 468\n".encode()


def archive(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("model.safetensors"))
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights.pt", b"x")
    return file.getvalue()


def torch_file(**options: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(1000)}, file, **options)
    return file.getvalue()


def traced() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), file)
    return file.getvalue()


FILES = {
    "traced.pt": (traced(), "a model of TorchScript"),
    "weights.pth": (POINTER, "a pointer of Git LFS, not the file: run `git lfs pull`"),
    "page.pth": (b"\n<!DOCTYPE html><html>\xe9</html>", r"a web page \(HTML\): download the file"),
    "s3.pth": (b"<?xml?>\n<Error><Code>AccessDenied</Code>", "a server's error, AccessDenied"),
    "hub.pth": (b'{"error":"Invalid username"}', "text that begins with .*Invalid username"),
    "word.pth": ("Entry not found à".encode()[:-1], "text that begins with 'Entry not found"),
    "model.tar.gz": (archive("w:gz"), r"an archive: unpack it with `tar -xf .*model\.tar\.gz`"),
    "tar.pth": (archive("w:"), "an archive: unpack it with `tar -xf"),
    "weights.pth.xz": (b"\xfd7zXZ\0\0\4", r"compressed: unpack it with `unxz < .*\.xz > FILE`"),
    "weights.zip": (zipped(), "a zip archive: unpack it with `unzip"),
    "cut.pt": (torch_file()[:-99], "a part of a zip file, as torch.save writes it"),
    "keras.h5": (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file, as Keras writes it"),
    "graph.pt": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\xff", "a graph for another runtime"),
    "empty.pt": (b"", "empty: copy or download it again"),
    "other.pt": (save({"a": torch.ones(3)}), r"a safetensors file: call it \*\.safetensors"),
    "other.safetensors": (torch_file(), r"a file of torch\.save: call it \*\.pt"),
    "cut_old.pt": (
        torch_file(_use_new_zipfile_serialization=False)[:2000],
        r"must be a state dict, as torch\.save\(",
    ),
    "program.pt": (
        Path(sys.executable).read_bytes()[:9999],
        r"only tensors are read; .*save its state dict with",
    ),
    "zeros.safetensors": (bytes(100), r"must be a safetensors file \("),
    "cut.safetensors": (save({"a": torch.ones(99)})[:-9], "a safetensors file that is cut short"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_weights_is_named(name: str, tmp_path: Path) -> None:
    content, words = FILES[name]
    (file := tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^model\.weights=.*{words}") as caught:
        build_model(ModelConfig("tests.own_models.tiny_net", weights=str(file)), 3)
    assert "\n" not in str(caught.value)


def test_a_pointer_in_the_place_of_a_model_or_checkpoint_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    (model / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be loaded .*`git lfs pull`"):
        load_model(model, CPU)
    (checkpoint := tmp_path / "step-000000001.pt").write_bytes(POINTER)
    with pytest.raises(DamagedFileError, match="a pointer of Git LFS"):
        load_tensors(checkpoint, verify=True)


@pytest.mark.parametrize("name", ["page.pth", "weights.zip", "weights.pth", "other.pt"])
def test_what_is_given_as_a_models_archive_is_named(name: str, tmp_path: Path) -> None:
    content, words = FILES[name]
    (file := tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"cannot be unpacked safely: it is {words}"):
        with unpacked(file):
            pass
