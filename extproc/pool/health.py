"""May a server be given new requests, by what was seen of it?

Three witnesses, kept apart:

* **The scrape.** A refused connection twice in a row means nobody listens: unhealthy until a scrape works again. A slow
  answer is not a dead server (a busy vLLM answers /metrics late), so time-outs only make the sample stale; after
  `SILENT_AFTER_S` without any answer the server counts as dead all the same. An answer of any kind (even a 404) shows
  that somebody is there.
* **The requests.** Three faults in a row (5xx and resets, as Envoy's access log tells) take the server out for
  `EJECT_S`; when it returns, the first fault takes it out again, for twice as long each time up to `EJECT_MAX_S`. One
  good answer to a request sent since forgets all that. Without this a server that fails fast looks idle and attracts
  everything. 4xx are the client's; 429 and 503 mean full, not broken. A request that Envoy retried elsewhere was
  refused, reset, or answered with 503, and the log does not say which: three of them in a row take the server out for
  `EJECT_S`, never longer.
* **Itself.** An engine that says it is asleep answers nothing until it is woken.
"""

from __future__ import annotations

REFUSED_IN_A_ROW = 2
SILENT_AFTER_S = 30.0
FAULTS_IN_A_ROW = 3
EJECT_S = 5.0
EJECT_MAX_S = 60.0
_MOST_EJECTIONS = 8  # counted no further: 2**8 is past any maximum, and 2**1024 is no float


class Health:
    """What was observed of one server. Times are of the monotonic clock, in seconds."""

    __slots__ = (
        "_declined",
        "_ejected_at_s",
        "_ejections",
        "_faults",
        "_first_failure_s",
        "_refused",
        "asleep",
        "ejected_until_s",
        "last_error",
        "reached",
        "sound",
    )

    def __init__(self) -> None:
        self.reached = False  # whether it ever answered a scrape, with whatever
        self.sound = False  # reached, and nothing is held against it: `problem` need not be asked
        self.last_error: str | None = None  # of the last scrape; None: it worked, or there was none
        self.asleep = False  # as it said of itself last
        self.ejected_until_s = float("-inf")
        self._ejected_at_s = float("-inf")
        self._refused = 0
        self._first_failure_s: float | None = None  # of the running row of failed scrapes
        self._faults = 0
        self._declined = 0
        self._ejections = 0

    def scrape_worked(self, *, asleep: bool = False) -> None:
        self.reached = True
        self.asleep = asleep
        self.last_error = None
        self._refused = 0
        self._first_failure_s = None
        self._judge()

    def scrape_failed(self, error: str, now: float, *, answered: bool, refused: bool) -> None:
        """`answered`: there was an HTTP answer, if not a usable one. `refused`: nobody listens there."""
        self.last_error = error
        if answered:
            self.reached = True
            self._refused = 0
            self._first_failure_s = None
            self._judge()
            return
        self.sound = False
        self._refused = self._refused + 1 if refused else 0
        if self._first_failure_s is None:
            self._first_failure_s = now

    def request_ok(self, sent_at_s: float) -> None:
        """A good answer to a request sent then. Of one sent before the ejection it proves nothing."""
        if sent_at_s < self._ejected_at_s:
            return
        self._faults = 0
        self._declined = 0
        self._ejections = 0
        self.ejected_until_s = float("-inf")
        self._judge()

    def request_fault(self, now: float) -> bool:
        """Count a fault; true when that ejects the server."""
        if now < self.ejected_until_s:
            return False  # of a request sent before
        self._faults += 1
        if self._faults < FAULTS_IN_A_ROW and not self._ejections:
            return False
        self._ejected_at_s = now
        self.ejected_until_s = now + min(EJECT_S * 2**self._ejections, EJECT_MAX_S)
        self._ejections = min(self._ejections + 1, _MOST_EJECTIONS)
        self._faults = 0
        self.sound = False
        return True

    def request_declined(self, now: float) -> bool:
        """Another server had to take a request that was sent here; true when that ejects this one."""
        if now < self.ejected_until_s:
            return False
        self._declined += 1
        if self._declined < FAULTS_IN_A_ROW:
            return False
        self._declined = 0
        self._ejected_at_s = now
        self.ejected_until_s = now + EJECT_S
        self.sound = False
        return True

    def _judge(self) -> None:
        """Ejections end by time, which nobody is told of: a server that was ejected is not sound before an answer."""
        ejected = self.ejected_until_s > float("-inf")
        failing = self._refused > 0 or self._first_failure_s is not None
        self.sound = self.reached and not (ejected or failing or self.asleep)

    def answers_badly(self, now: float) -> bool:
        """Whether its own answers speak against it, not only its metrics page: errors in a row, or it sleeps."""
        return now < self.ejected_until_s or self.asleep

    def problem(self, now: float) -> str | None:
        """Why the server should get nothing now; None: it may."""
        if self._refused >= REFUSED_IN_A_ROW:
            return "connection refused"
        if self._first_failure_s is not None and now - self._first_failure_s > SILENT_AFTER_S:
            return "no answer"
        if now < self.ejected_until_s:
            return "errors in a row"
        if self.asleep:
            return "the engine sleeps"
        return None
