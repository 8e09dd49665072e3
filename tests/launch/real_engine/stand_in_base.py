"""The base image of the tests, built from Debian packages without a registry.

`python3 -m tests.launch.real_engine.stand_in_base` builds it beforehand.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from launch.engine import Engine
from tests.launch.real_engine.private_engine import (
    docker_command,
    ensure_packages,
    running_engine,
)

FOLDER = Path(__file__).parent / "stand_in"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
RELEASE = "bookworm"
# No JPEG headers: the Dockerfile has to install them.
PACKAGES = ("ca-certificates", "g++", "python3", "python3-dev", "python3-venv")
UNNEEDED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")


def reference() -> str:
    """Name of the base; its tag is a hash of everything it is built from."""
    digest = hashlib.sha256(repr((RELEASE, PACKAGES)).encode())
    for file in sorted(FOLDER.iterdir()):
        digest.update(file.read_bytes())
    return f"stand-in-base:{digest.hexdigest()[:12]}"


def ensure_base(engine: Engine) -> str:
    """Build the base unless the engine has it, in about four minutes; returns its name."""
    name = reference()
    if not engine.call("image", "ls", "--quiet", name):
        with TemporaryDirectory(prefix="stand-in-") as folder:
            rootfs = make_rootfs(engine, Path(folder))
            build(engine, Path(folder), rootfs, name)
    return name


def make_rootfs(engine: Engine, folder: Path) -> str:
    """Import a minimal Debian as an image; returns its name."""
    archive, name = folder / "rootfs.tar", "stand-in-rootfs:latest"
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNNEEDED]
    packages = f"--include={','.join(PACKAGES)}"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", packages, *options, RELEASE, str(archive)],
        check=True,
    )
    engine.call("import", str(archive), name)
    archive.unlink()
    return name


def build(engine: Engine, folder: Path, rootfs: str, name: str) -> None:
    """Build the base: the minimal Debian with Python packages."""
    context = folder / "context"
    shutil.copytree(FOLDER, context)
    (context / "certificates").mkdir()
    for certificate in CERTIFICATES.glob("*.crt"):
        shutil.copy(certificate, context / "certificates")
    options = ["--network=host", f"--build-arg=ROOTFS={rootfs}", f"--tag={name}"]
    assert engine.show("build", "--progress=plain", *options, str(context))


def main() -> None:
    ensure_packages()
    docker = docker_command()
    with running_engine(docker) as host:
        os.environ |= {"DOCKER_BUILDKIT": "1", **({"DOCKER_HOST": host} if host else {})}
        ensure_base(Engine((docker,)))


if __name__ == "__main__":
    main()
