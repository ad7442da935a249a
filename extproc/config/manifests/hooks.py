"""What does a container's preStop hook do before the server is told to stop?

Kubernetes runs the hook first, and sends SIGTERM when it has ended; the grace period runs from its beginning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from extproc.config.tree import Node

_SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SLEEP = re.compile(r"\bsleep\s+([0-9]+(?:\.[0-9]+)?)([smhd]?)\b")
_DRAIN = re.compile(r"\bextproc\s+drain\b|/v1/endpoints/\S*/drain\b")
_LOOP = re.compile(r"\b(while|until)\b")
_DEADLINE = re.compile(r"--deadline[=\s]+([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class PreStop:
    """`waits`: until the requests have ended, for at most `deadline_s` (None: as long as that may take)."""

    node: Node
    sleep_s: float = 0.0  # what it takes for certain
    bare: bool = False  # it sleeps, and nothing else
    drains: bool = False  # it tells us that the server leaves
    waits: bool = False
    deadline_s: float | None = None


def pre_stop_of(container: Node) -> PreStop | None:
    """None: it has none."""
    node = container.at("lifecycle", "preStop")
    if node is None or not node.fields:
        return None
    sleep = node.at("sleep", "seconds")
    if sleep is not None and isinstance(sleep.value, int | float):
        return PreStop(node, float(sleep.value), bare=True)
    text = " ".join(_script([str(word.value) for word in node.list_at("exec", "command")])).strip()
    drains = _DRAIN.search(text) is not None
    waits = drains and ("--wait" in text or _LOOP.search(text) is not None)
    deadline = _DEADLINE.search(text) if drains else None
    slept_s = sum(float(found[1]) * _UNITS[found[2]] for found in _SLEEP.finditer(text))
    if waits and _LOOP.search(text):
        slept_s = 0.0  # it sleeps between two questions
    return PreStop(
        node,
        slept_s,
        bare=slept_s > 0 and _SLEEP.sub("", text).strip(" ;") in ("", "/bin/", "/usr/bin/"),
        drains=drains,
        waits=waits,
        deadline_s=float(deadline[1]) if deadline is not None else None,
    )


def _script(words: list[str]) -> list[str]:
    """What a shell is told to do, or the words as they are."""
    if words and words[0].rpartition("/")[2] in _SHELLS:
        return [word for word in words[1:] if not re.fullmatch(r"-[a-z]+", word)]
    return words
