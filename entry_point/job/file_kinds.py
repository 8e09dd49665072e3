"""Names files that are not the weights or archive they should be: a Git LFS pointer, a web page,
another format."""

from __future__ import annotations

import re
import shlex
import zipfile
from pathlib import Path

_HEAD, _TAR = 1024, slice(257, 262)
_BINARY = {
    b"\x89HDF": "an HDF5 file, as Keras writes it: save the weights with torch.save or safetensors",
    b"\x93NUMPY": "an array of NumPy: save the weights with torch.save or safetensors",
    b"7z\xbc\xaf": "a 7z archive: unpack it, and name what it holds",
    b"Rar!": "a RAR archive: unpack it, and name what it holds",
}
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"(\xb5/\xfd": "unzstd",
}
_TAR_NAME = re.compile(r"\.(tar\b|t[gbx]z\d?$)")
# The first members of an ONNX model: its version, and its producer.
_ONNX = re.compile(rb"\x08[\x01-\x20]\x12.[a-z]", re.DOTALL)
_S3_ERROR = re.compile(r"<Code>(\w+)</Code>")
_SHOWN = 32


def name_kind(path: Path) -> str | None:
    """Returns what kind of file it is whose content does not fit its suffix, and what to do; None
    if unknown."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "empty: copy or download it again"
    return _archive(path, head) or _format(path, head) or _text(head)


def _archive(path: Path, head: bytes) -> str | None:
    name = shlex.quote(str(path))
    command = next((_COMPRESSED[magic] for magic in _COMPRESSED if head.startswith(magic)), None)
    if head[_TAR] == b"ustar" or (command and _TAR_NAME.search(path.name)):
        return f"an archive: unpack it with `tar -xf {name}`, and name what it holds"
    if command:
        return f"compressed: unpack it with `{command} < {name} > FILE`, and name FILE"
    if not head.startswith(b"PK"):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError):
        return "a part of a zip file, as torch.save writes it: copy or download it again"
    if {"data.pkl", "constants.pkl"} <= inside:
        return "a model of TorchScript: save its weights with torch.save(model.state_dict(), FILE)"
    if "data.pkl" not in inside:
        return f"a zip archive: unpack it with `unzip {name}`, and name what it holds"
    return "a file of torch.save: call it *.pt" if path.suffix == ".safetensors" else None


def _format(path: Path, head: bytes) -> str | None:
    for magic, words in _BINARY.items():
        if head.startswith(magic):
            return words
    if path.suffix == ".onnx" or head[4:8] == b"TFL3" or _ONNX.match(head):
        return "a graph for another runtime (ONNX, TFLite): take the weights that it was made from"
    if head[8:9] == b"{" and path.suffix == ".safetensors":
        return "a safetensors file that is cut short or changed: copy or download it again"
    return "a safetensors file: call it *.safetensors" if head[8:9] == b"{" else None


def _text(head: bytes) -> str | None:
    text = head.decode(errors="replace").lstrip("\ufeff \r\n\t")
    start = text[:15].lower()
    if start.startswith("version https:") and "git-lfs" in text:
        return "a pointer of Git LFS, not the file: run `git lfs pull` in its repository"
    if start.startswith(("<!doctype html", "<html", "<head")):
        return "a web page (HTML): download the file itself, not the page that shows it"
    if start.startswith(("<?xml", "<error")):
        code = _S3_ERROR.search(text)
        said = f"a server's error, {code[1]}" if code else "XML"
        return f"{said}: download the file itself"
    shown = " ".join(text.split())
    # The last character may be incomplete.
    if shown and shown[:-1].isprintable() and "\ufffd" not in shown[:-1]:
        return f"text that begins with {shown[:_SHOWN]!r}: copy or download the file itself"
    return None
