"""May a server be given new requests, by what was seen of it?

Four witnesses, kept apart:

* **The scrape.** A refused connection twice in a row means nobody listens: out until a scrape works again. A slow
  answer is not a dead server (a busy vLLM answers /metrics late), so time-outs only make the sample stale; after
  `SILENT_AFTER_S` without any answer the server counts as dead all the same. An answer of any kind (even a 404) shows
  that somebody is there.
* **The requests.** Three faults in a row (5xx, resets and failed connections, as Envoy's access log tells) eject the
  server for `EJECT_S`: a server that fails fast looks idle and attracts everything; one fault alone may be the
  request's own, and each fault more costs a client an answer. 4xx are the client's. 429 and 503 mean full, not broken
  (below). Where an entry is missing that says how an attempt went which Envoy repeated elsewhere, the first server was
  refused, reset, or answered 503: three of them in a row eject for `EJECT_S`, never longer.
* **The probe.** Whoever is out, or new, is asked for its /health. While that fails it stays out. No probe ends nothing:
  without a verdict for `PROBE_WAIT_S` (nobody probes, or no more) it is done without. A new server serves once its page
  tells its load *and* its /health is good: one of them alone may come from whatever starts it. Where it answers, but
  never so, that is done without after `PROBE_WAIT_S`, too.
* **Itself.** An engine that says it is asleep answers nothing until it is woken.

**An ejected server returns slowly.** First one request of ours at a time, and each good answer doubles that
`allowance`, up to `ALLOWANCE_MAX`: so many at once are hardly fewer than any, and six good answers are no accident.
A fault on the way ejects it again, for twice as long up to `EJECT_MAX_S`, which costs a broken server's clients one
error a minute. After `RETURN_MAX_S` without a fault it is sound however few answers are known: the log may have
ceased, or there may be no traffic. What was sent before the ejection counts neither way, except that a good answer to
a request sent since, in panic, ends the ejection.

**A full server** (429 or 503) is used only where no other can be, for `FULL_S`: about what a full queue needs to move.
Said again with no good answer in between, it is twice as long, up to `FULL_MAX_S`: a queue that lasts longer is for the
pool to shed, not for one server to sit out. A good answer to a request sent since ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

REFUSED_IN_A_ROW = 2
SILENT_AFTER_S = 30.0
FAULTS_IN_A_ROW = 3
EJECT_S = 5.0
EJECT_MAX_S = 60.0
PROBE_WAIT_S = 30.0
ALLOWANCE_MAX = 32
RETURN_MAX_S = 60.0
FULL_S = 2.0
FULL_MAX_S = 10.0
_MOST = 8  # repeats are counted no further: 2**8 is past any maximum, and 2**1024 is no float
_NEVER = float("-inf")


class Health:
    """What was observed of one server. Times are of the monotonic clock, in seconds."""

    __slots__ = (
        "_declined",
        "_doubt_until_s",
        "_doubted_at_s",
        "_ejected_at_s",
        "_ejections",
        "_faults",
        "_first_answer_s",
        "_first_failure_s",
        "_full_at_s",
        "_fulls",
        "_lost",
        "_page",
        "_probe_error",
        "_probed",
        "_refused",
        "_tell",
        "_well",
        "allowance",
        "asleep",
        "ejected_until_s",
        "full_until_s",
        "held",
        "last_error",
        "proven_at_s",
        "reached",
        "sound",
        "starting_since_s",
        "was_refused",
    )

    def __init__(self, *, probed: bool = False, tell: Callable[[], None] | None = None) -> None:
        """`probed`: somebody probes, so that a new server must pass that, too. `tell`: called when `sound` changes."""
        self.reached = False  # whether it was ever seen to serve
        self.starting_since_s: float | None = None  # it did not serve at the first look, which was then
        self.proven_at_s: float | None = None  # when it was first seen to serve, page and /health
        self.was_refused = False  # nobody listened there before
        self.held = False  # it has as many requests as it may while it warms up
        self.sound = False  # reached, and nothing is held against it: nothing else here need be asked
        self.last_error: str | None = None  # of the last scrape; None: it worked, or there was none
        self.asleep = False  # as it said of itself last
        self.ejected_until_s = _NEVER
        self.allowance: int | None = None  # requests at once until it is sound again; None: no bound
        self.full_until_s = _NEVER
        self._ejected_at_s = _NEVER
        self._ejections = 0
        self._refused = 0
        self._first_failure_s: float | None = None  # of the running row of failed scrapes
        self._lost = False  # that row was long enough to put it out
        self._faults = 0
        self._declined = 0
        self._full_at_s = _NEVER
        self._fulls = 0
        self._page = False  # it has told its load; asked only until it is reached
        self._well = not probed  # its /health was good; asked only until it is reached
        self._first_answer_s: float | None = None  # of whatever kind
        self._probed = probed  # somebody probes
        self._tell = tell
        self._probe_error: str | None = None  # of the last probe; None: it passed
        self._doubted_at_s = _NEVER  # a probe sent since must pass ...
        self._doubt_until_s = _NEVER  # ... or this time come; in the past: there is no doubt

    def state(self) -> dict[str, float | int | str | bool | None]:
        """All that is known, for another process that is to know the same."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "_tell"}

    def take_over(self, state: Mapping[str, float | int | str | bool | None]) -> None:
        """Know what another process knew when it called `state`."""
        for name, value in state.items():
            if name != "sound":
                setattr(self, name, value)
        self._become(sound=bool(state["sound"]))

    def scrape_worked(self, now: float, *, asleep: bool = False, usable: bool = True) -> None:
        """`usable`: the page told something about load."""
        self.asleep = asleep
        self._page = self._page or usable
        self.last_error = None
        self._answered(now)

    def scrape_failed(self, error: str, now: float, *, answered: bool, refused: bool) -> None:
        """`answered`: there was an HTTP answer, if not a usable one. `refused`: nobody listens there."""
        self.last_error = error
        if answered:
            self._answered(now)
            return
        self._become(sound=False)
        self._seen_starting(now)
        self.was_refused = self.was_refused or (refused and not self.reached)
        self._refused = self._refused + 1 if refused else 0
        if self._first_failure_s is None:
            self._first_failure_s = now
        if not self._lost and self._unreachable(now) is not None:
            self._lost = True
            self._doubt(now, now)

    def probe_passed(self, sent_at_s: float) -> None:
        """Its /health is good, or it has none and answers otherwise."""
        self._probed = True
        if sent_at_s >= self._doubted_at_s:
            self._probe_error = None
            self._doubt_until_s = _NEVER
            self._well = True
            self._arrive(sent_at_s)
            self._judge(sent_at_s)

    def probe_failed(self, error: str, now: float, *, certain: bool) -> None:
        """`certain`: it said so itself, or nobody listens. Else it may be busy, which only keeps out who is out."""
        self._probed = True
        if not certain and now >= max(self.ejected_until_s, self._doubt_until_s):
            return
        self._seen_starting(now)
        self._probe_error = error
        if self.allowance is not None:
            self.ejected_until_s = max(self.ejected_until_s, now)  # it returns from here on
        self._doubt(now, now)

    def request_ok(self, sent_at_s: float) -> None:
        """A good answer to a request sent then. Of one sent before the ejection it proves nothing."""
        if sent_at_s < self._ejected_at_s:
            return
        self.reached = True
        self._faults = 0
        self._declined = 0
        if sent_at_s >= self._full_at_s:
            self._fulls = 0
            self.full_until_s = _NEVER
        if sent_at_s >= self._doubted_at_s:  # better proof than a probe
            self._doubt_until_s = _NEVER
        if self.allowance is not None:
            self.ejected_until_s = min(self.ejected_until_s, sent_at_s)
            if self.allowance < ALLOWANCE_MAX:
                self.allowance *= 2
            else:
                self._recovered()
        self._judge(sent_at_s)

    def request_fault(self, now: float, sent_at_s: float | None = None) -> bool:
        """Count a fault; true when that ejects the server. `sent_at_s` None: just now."""
        if now < self.ejected_until_s or (sent_at_s is not None and sent_at_s < self._ejected_at_s):
            return False  # what was wrong then is known
        self._faults += 1
        if self._faults < FAULTS_IN_A_ROW and not self._returning(now):
            return False
        self._eject(now, min(EJECT_S * 2**self._ejections, EJECT_MAX_S))
        self._ejections = min(self._ejections + 1, _MOST)
        return True

    def request_declined(self, now: float) -> bool:
        """Another server had to take a request that was sent here; true when that ejects this one."""
        if now < self.ejected_until_s:
            return False
        self._declined += 1
        if self._declined < FAULTS_IN_A_ROW:
            return False
        self._eject(now, EJECT_S)
        return True

    def request_full(self, now: float) -> None:
        """It answered 429 or 503. What else it says of the same moment does not prolong the penalty."""
        if now < self.full_until_s:
            return
        if now - self.full_until_s > FULL_MAX_S:
            self._fulls = 0  # another time
        self._full_at_s = now
        self.full_until_s = now + min(FULL_S * 2**self._fulls, FULL_MAX_S)
        self._fulls = min(self._fulls + 1, _MOST)
        self._become(sound=False)

    @property
    def refused(self) -> bool:
        """Whether nobody listens there."""
        return self._refused >= REFUSED_IN_A_ROW

    def full(self, now: float) -> bool:
        """Whether it should come after those that are not: by its own word, or while it warms up."""
        return self.held or now < self.full_until_s

    def hold(self, held: bool) -> None:
        """It has as many requests as it may while it warms up, or it has fewer (again)."""
        self.held = held
        if held:
            self._become(sound=False)

    def answers_badly(self, now: float) -> bool:
        """Whether its own answers speak against it, not only its metrics page: errors in a row, or it sleeps."""
        return self._out(now) is not None or self.asleep

    def problem(self, now: float) -> str | None:
        """Why the server should get nothing now; None: it may."""
        problem = self._unreachable(now) or self._out(now)
        return "the engine sleeps" if problem is None and self.asleep else problem

    def bound(self, now: float) -> int | None:
        """How many requests sent since `ejected_until_s` it may have at once; None: as many as there are."""
        return self.allowance if self._returning(now) else None

    def to_probe(self, now: float) -> bool:
        """Whether its /health should be asked for: it is new, or out and not by its own word."""
        if self.sound:
            return False
        return not self.reached or self._unreachable(now) is not None or self._out(now) is not None

    def _unreachable(self, now: float) -> str | None:
        if self.refused:
            return "connection refused"
        if self._first_failure_s is not None and now - self._first_failure_s > SILENT_AFTER_S:
            return "no answer"
        return None

    def _out(self, now: float) -> str | None:
        if now < self.ejected_until_s:
            return "errors in a row"
        if now < self._doubt_until_s:
            return self._probe_error or "not probed yet"
        return None

    def _returning(self, now: float) -> bool:
        return self.allowance is not None and now - self.ejected_until_s < RETURN_MAX_S

    def _answered(self, now: float) -> None:
        if not self.reached:
            if self._first_answer_s is None:
                self._first_answer_s = now
            self._arrive(now)
            if not self.reached and not self._page:
                self._seen_starting(now)
        self._refused = 0
        self._first_failure_s = None
        self._lost = False
        self._judge(now)

    def _arrive(self, now: float) -> None:
        if self.reached:
            return
        if self._page and self._well:
            self.reached, self.proven_at_s = True, now
        elif self._first_answer_s is not None and now - self._first_answer_s >= PROBE_WAIT_S:
            self.reached = True

    def _seen_starting(self, now: float) -> None:
        if not self.reached and self.starting_since_s is None:
            self.starting_since_s = now

    def _eject(self, now: float, length_s: float) -> None:
        if self.allowance is not None and not self._returning(now):
            self._ejections = 0
        self._ejected_at_s = now
        self.ejected_until_s = now + length_s
        self.allowance = 1
        self._faults = 0
        self._declined = 0
        self._probe_error = None
        self._doubt(now, self.ejected_until_s)

    def _doubt(self, now: float, out_until_s: float) -> None:
        self._become(sound=False)
        if self._probed:
            self._doubted_at_s = now
            self._doubt_until_s = max(self._doubt_until_s, out_until_s + PROBE_WAIT_S)

    def _recovered(self) -> None:
        self.allowance = None
        self.ejected_until_s = _NEVER
        self._ejections = 0

    def _judge(self, now: float) -> None:
        """What ends by time, nobody is told of: the server is not sound before the next answer of any kind."""
        if self.allowance is not None and not self._returning(now):
            self._recovered()
        failing = self._refused > 0 or self._first_failure_s is not None
        held = (
            self.held or self.allowance is not None or self.asleep or now < max(self._doubt_until_s, self.full_until_s)
        )
        self._become(sound=self.reached and not failing and not held)

    def _become(self, *, sound: bool) -> None:
        if sound != self.sound:
            self.sound = sound
            if self._tell is not None:
                self._tell()
