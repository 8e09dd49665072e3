"""A headless Chromium, controlled through its DevTools protocol over two pipes.

https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.needs import lacks

PATIENCE_S = 60.0
COMMAND = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One open page at a time."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, os.fdopen(answers, "rb")
        self._number = 0
        self._session: dict[str, str] = {}

    def open(self, url: str) -> None:
        """Open `url` in a new tab, which the other methods then mean."""
        self._session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        # Answers once the new document has taken the place of the empty one.
        navigated = self.call("Page.navigate", url=url)
        assert "errorText" not in navigated, navigated

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> bytes:
        received = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            received += byte
        return bytes(received)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
        return found.get("value")

    def wait_for(self, expression: str) -> Any:
        """The first value of an expression that is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, self.evaluate("document.body.innerText")
            time.sleep(0.05)
        return value

    def drop(self, file: Path, x: int, y: int) -> None:
        """Drag a file from outside and drop it at a position of the page."""
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, selector: str, file: Path) -> None:
        """Choose a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])


@contextmanager
def browser(url: str, profile: Path) -> Iterator[Browser]:
    """Open `url`; the browser ends with the context."""
    with running_browser(profile) as opened:
        opened.open(url)
        yield opened


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """A browser without a page; it ends with the context."""
    if COMMAND is None:
        lacks("a browser", "apt-get install chromium")
    from_us, commands = os.pipe()
    answers, to_us = os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={profile}"]
    # The browser reads commands from file 3 and writes to file 4.
    script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", COMMAND, *options, "about:blank"],
        pass_fds=(from_us, to_us),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        yield Browser(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
