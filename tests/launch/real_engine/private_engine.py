"""A Docker engine for the tests: the running one, or a private one that is stopped afterwards."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# dockerd needs iptables for host names in networks; the others are for base and registry.
PACKAGES = ("docker.io", "iptables", "mmdebstrap", "docker-registry")
# Separate from docker.io only in newer releases of Debian and Ubuntu.
OPTIONAL_PACKAGES = ("docker-cli", "docker-buildx")
PROGRAMS = ("docker", "dockerd", "mmdebstrap", "docker-registry", "iptables")
START_SECONDS = 60
STOP_SECONDS = 60


class MissingPart(Exception):
    """The machine lacks something for these tests; the text says what to do."""


def cache_folder() -> Path:
    """Where the private engine keeps its images, the base among them, for the next session."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "managed-training-template" / "container-tests"


def is_installed(package: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True).stdout == "installed"


def ensure_packages() -> None:
    """Install missing Debian packages; raises MissingPart if that is not possible."""
    missing = [program for program in PROGRAMS if not find_program(program)]
    if not missing:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise MissingPart(
            f"missing programs: {', '.join(missing)}; run as root on Debian or Ubuntu to install "
            f"them automatically, or install the equivalents of {', '.join(PACKAGES)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-oDPkg::Lock::Timeout=300", "-qq"]
    subprocess.run([*apt, "update"], env=environment, check=True)
    known = [p for p in OPTIONAL_PACKAGES if is_in_apt(p)]
    wanted = [p for p in (*PACKAGES, *known) if not is_installed(p)]
    install = [*apt, "install", "-y", "--no-install-recommends", *wanted]
    done = subprocess.run(install, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise MissingPart(f"{' '.join(install)} failed: {done.stderr.strip()[-400:]}")


def is_in_apt(package: str) -> bool:
    policy = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True)
    return "Candidate: " in policy.stdout and "Candidate: (none)" not in policy.stdout


def find_program(name: str) -> str | None:
    """Path of a program; searches the sbin folders too, which a user's PATH may lack."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin")


def docker_command() -> str:
    """A docker command with BuildKit; raises MissingPart if there is none."""
    for candidate in (shutil.which("docker"), "/usr/bin/docker"):
        if candidate and Path(candidate).exists() and has_buildkit(candidate):
            return candidate
    raise MissingPart("no docker command with BuildKit: install docker-buildx")


def has_buildkit(docker: str) -> bool:
    """Whether ``docker build`` uses BuildKit: built in before 23, a plug-in since."""
    words = subprocess.run([docker, "--version"], capture_output=True, text=True).stdout.split()
    if int(words[2].split(".")[0]) < 23:
        return True
    return subprocess.run([docker, "buildx", "version"], capture_output=True).returncode == 0


def answers(docker: str, host: str | None = None) -> bool:
    """Whether a daemon answers, at ``host`` or at the address in the environment."""
    environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
    return subprocess.run([docker, "version"], capture_output=True, env=environment).returncode == 0


@contextmanager
def running_engine(docker: str) -> Iterator[str | None]:
    """Yield the DOCKER_HOST to use; None for an engine that is already running."""
    if answers(docker):
        yield None
        return
    if os.geteuid() != 0:
        raise MissingPart("no Docker engine answers, and only root can start one: run as root")
    if Path("/sys/class/net/docker0").exists():
        # A private engine without a bridge would delete the bridge of the other engine.
        raise MissingPart(
            "another engine is set up here (docker0 exists): start it, then try again"
        )
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    ensure_unused(folder / "pid")
    # Socket paths must be short, and this session must not find the files of an earlier one.
    with TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as running:
        arguments = engine_arguments(folder, Path(running))
        host = f"unix://{running}/socket"
        with daemon(docker, arguments, folder / "dockerd.log", host):
            yield host


def ensure_unused(pidfile: Path) -> None:
    """Raise MissingPart if another engine uses the folder; two would damage it."""
    if not pidfile.exists():
        return
    pid = pidfile.read_text().strip()
    other = Path("/proc", pid, "comm")
    if other.exists() and other.read_text().strip() == "dockerd":
        raise MissingPart(
            f"{pidfile.parent}: used by another dockerd, process {pid}; wait for it, "
            f"end it (kill {pid}) or set XDG_CACHE_HOME"
        )
    # Left by a killed engine; the process ID may since have been reused.
    pidfile.unlink()


def engine_arguments(folder: Path, running: Path) -> list[str]:
    """Arguments for ``dockerd`` without a default bridge and without firewall rules."""
    return [
        f"--data-root={folder}/data",
        f"--exec-root={running}",
        f"--pidfile={folder}/pid",
        f"--host=unix://{running}/socket",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
    ]


@contextmanager
def daemon(docker: str, arguments: Sequence[str], log: Path, host: str) -> Iterator[None]:
    """Run dockerd until the end of the block; raises MissingPart if it does not start."""
    program = find_program("dockerd") or "dockerd"
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, *arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            # Ctrl-C must reach only the tests, which then stop the engine.
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(docker, host):
            if process.poll() is not None or time.monotonic() > deadline:
                raise MissingPart(f"dockerd did not start: {log.read_text()[-400:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Containers can delay its end; it would block the folder for the next session.
            process.kill()
            process.wait()
