"""The page at /, to try the model in a browser."""

from __future__ import annotations

from html import escape
from pathlib import Path

from entry_point.job.text import counted
from entry_point.model_folder import Model
from entry_point.serving.forms import Answer

_PAGE = Path(__file__).with_name("page.html")
_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    b"img-src blob: data:; connect-src 'self'"
)
"""The page's script and style are inline, and it sends requests to this server only."""
_NAMES_SHOWN = 200


def page(model: Model) -> Answer:
    """Returns the page, with the model's name, task, class names and best metric."""
    text = _PAGE.read_text(encoding="utf-8")
    facts = [model.config.model.name, model.config.task.name]
    facts += [model.reached] if model.reached else []
    names = model.task.names
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    about = (
        f'<p id="about">{escape(", ".join(facts))}</p>\n'
        f"<details><summary>{counted(len(names), 'name')}</summary>{escape(shown)}</details>"
    )
    content = text.replace("<!-- about -->", about).encode()
    headers = {b"content-security-policy": _POLICY}
    return Answer(content, "text/html; charset=utf-8", headers=headers)
