"""What is the status page, as one document?

The page is written in parts (`page/`): the document with two marks, its style and its scripts. They are put together
at the start. Nothing is loaded from elsewhere: the policy that goes with the document allows its own style
and scripts, by their hashes, and questions to the server that it came from.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_STYLE, _SCRIPT = "/* style */", "/* script */"  # the marks
# Each uses those before it.
_SCRIPTS = (
    *("elements.js", "words.js", "chart.js", "sorting.js"),
    *("cells.js", "advice.js", "pool.js", "picks.js", "poll.js"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A page and what must be sent with it."""

    text: str
    policy: str  # its Content-Security-Policy


@cache
def document() -> Document:
    """The status page."""
    style = _part("status.css")
    script = "\n".join(['"use strict";', "(() => {", *map(_part, _SCRIPTS), "})();", ""])
    text = _part("status.html").replace(_STYLE, style).replace(_SCRIPT, script)
    policy = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",  # its icon
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return Document(text, "; ".join(f"{what} {allowed}" for what, allowed in policy.items()))


def _part(name: str) -> str:
    return (resources.files("extproc.admin") / "page" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
