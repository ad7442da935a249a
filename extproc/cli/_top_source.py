"""What did the service say last? It is asked again and again beside the picture, so that keys work while it is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from extproc.cli._admin import AwayError, RefusedError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """The last answer, and what became of the last question."""

    shown: Json | None = None  # None: there was no answer yet
    history: Json = field(default_factory=lambda: {"times": [], "pools": {}})
    at: float = 0.0  # Unix time of the answer
    trouble: str | None = None  # why the last question was not answered; None: it was
    number: int = 0  # of the questions so far


def heard(before: Heard, ask: Callable[[float | None], Json], unix_s: float) -> Heard:
    """Ask once. `ask` is given the time since when the history is wanted, None: all of it."""
    times = before.history["times"]
    number = before.number + 1
    try:
        shown = ask(times[-1] if times else None)
        history = joined(before.history, shown["history"])
        _ = shown["version"], shown["pools"][0]["endpoints"]
    except (AwayError, RefusedError) as error:
        return Heard(before.shown, before.history, before.at, str(error), number)
    except (LookupError, TypeError):
        trouble = "what answers there is not this service, or another version of it"
        return Heard(before.shown, before.history, before.at, trouble, number)
    return Heard(shown, history, unix_s, None, number)


def joined(old: Json, news: Json) -> Json:
    """The history that is known, and what is new of it. Its pools have a list a column, one value for each time."""
    first = news["times"][0] if news["times"] else float("inf")
    oldest = float("inf") if news["from"] is None else news["from"]
    kept = [i for i, at in enumerate(old["times"]) if oldest <= at < first]
    fresh = len(news["times"])
    pools = {}
    for name in dict.fromkeys((*old["pools"], *news["pools"])):
        was, now = old["pools"].get(name, {}), news["pools"].get(name, {})
        columns = [key for key in dict.fromkeys((*was, *now)) if key != "asked"]  # which has columns of its own
        pools[name] = {
            key: [*([was[key][i] for i in kept] if key in was else [None] * len(kept)), *now.get(key, [None] * fresh)]
            for key in columns
        }
    return {"times": [*(old["times"][i] for i in kept), *news["times"]], "pools": pools}


class Source:
    """Asks every so many seconds, on a thread of its own, until it is left."""

    def __init__(self, ask: Callable[[float | None], Json], every_s: float) -> None:
        self.heard = Heard()
        self.paused = False
        self._ask = ask
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)

    def __enter__(self) -> Source:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()  # the thread may wait for an answer; it is not waited for

    def _run(self) -> None:
        while True:
            if not self.paused:
                self.heard = heard(self.heard, self._ask, time.time())
            if self._stop.wait(self._every_s):
                return
