"""How many prompt tokens does a server still owe us, and how fast does it compute them?

vLLM computes prompts in the order they came, in chunks, so a new request's first token comes after all prompt tokens
owed before it, and its own:

    TTFT = BASE_S + (owed + own) / rate                                                               (1)

*Owed* is what we sent and have not seen done. Between samples it drains at the rate. A sample corrects it: the count of
vLLM's TTFT histogram says how many requests have had their first token, and since the order is kept, these are the
oldest ones. What a sample shows to be waiting is owed for certain.

Some requests never have a first token: they were aborted, refused or lost, or ask for no text. The histogram does not
tell which. A request that was over before a sample was taken is in it, or never will be, so after each sample such
requests are struck off. Until then one of them may be taken for the one that had its token.

*The rate* is fitted to (1): the same histogram's sum says how long those requests waited, and what stood before each
was noted when it was sent. Requests before the last few hundred count ever less. The prior stands for `PRIOR_TOKENS`,
so a few odd measurements move nothing, and a slow card shows after some dozens of requests.
"""

from __future__ import annotations

from collections import deque
from math import exp

from extproc.pool.sample import LoadSample

BASE_S = 0.02  # what a first token costs beside its prompt: one step of the engine, HTTP and tokenising
DEFAULT_RATE = 8000.0  # tokens/s; an 8-billion-parameter model on one large card (9,700 by arithmetic)
PRIOR_TOKENS = 20_000.0
HALF_LIFE_REQUESTS = 100.0
MIN_RATE, MAX_RATE = 50.0, 1e6  # tokens/s
ARRIVALS_S = 5.0  # how long a request counts for the rates of requests: ten samples, and some bursts of them
_MOST_ENDED = 512  # kept for a sample to come; only where none come are there as many


class Prefill:
    """The prompt of one request on one server, from the pick on."""

    __slots__ = ("ahead", "done", "ended_s", "sent_s", "tokens")

    def __init__(self, tokens: float, ahead: float, sent_s: float) -> None:
        self.tokens = tokens  # to be computed for it: what the server does not hold
        self.ahead = ahead  # owed before it and for it, when it was sent
        self.sent_s = sent_s
        self.ended_s: float | None = (
            None  # since when the request is over, so that nothing is owed for it; None: it runs
        )
        self.done = False  # not in the queue any more


class PrefillQueue:
    """The prompts sent to one server, oldest first. Times are of the monotonic clock, in seconds."""

    __slots__ = (
        "_ended",
        "_first_tokens",
        "_fit_s",
        "_fit_tokens",
        "_open_tokens",
        "_owed",
        "_prior_s",
        "_queue",
        "_ttft_sum_s",
        "_updated_s",
        "bound_per_s",
        "clear_at_s",
        "foreign",
        "rate",
        "requests_per_s",
        "token_s",
    )

    def __init__(self, rate: float = DEFAULT_RATE) -> None:
        """`rate`: the prior, tokens/s."""
        self.foreign = 0.0  # tokens that wait there and are not ours, by the last sample and drained since
        self._queue: deque[Prefill] = deque()
        self._ended = 0  # in the queue, of requests that are over
        self._open_tokens = 0.0  # in the queue, of the others
        self.requests_per_s = 0.0  # sent there, lately
        self.bound_per_s = 0.0  # of these, sent for what is held there: each counts by the part of its prompt that was
        self._owed = 0.0  # tokens, as of `_updated_s`
        self._updated_s = 0.0
        self._first_tokens: float | None = None  # of the last sample
        self._ttft_sum_s = 0.0
        self._fit_tokens = 0.0
        self._fit_s = 0.0
        self.expect(rate)

    def expect(self, rate: float) -> None:
        """Set the prior, tokens/s: of its pool, where that is known. To be called before anything is measured."""
        self.rate = rate
        self.token_s = 1.0 / rate
        self._prior_s = PRIOR_TOKENS / rate
        self._set_clear()

    def owed(self, now: float) -> float:
        """Prompt tokens to be computed before those of a request sent now."""
        left = self._owed + self.foreign - (now - self._updated_s) * self.rate
        return left if left > 0.0 else 0.0

    def add(self, tokens: float, now: float, held_ratio: float = 0.0) -> Prefill:
        """A request with so many tokens to compute is sent now; the server holds that part of its prompt, 0 to 1."""
        self._settle(now)
        self.requests_per_s += 1.0 / ARRIVALS_S
        self.bound_per_s += held_ratio / ARRIVALS_S
        self._owed += tokens
        self._set_clear()
        prefill = Prefill(tokens, self._owed + self.foreign, now)
        self._queue.append(prefill)
        self._open_tokens += tokens
        return prefill

    def end(self, prefill: Prefill, now: float) -> None:
        """Its request is over, or has gone to another server: nothing is owed for it."""
        if prefill.ended_s is not None:
            return
        prefill.ended_s = now
        if not prefill.done:
            self._ended += 1
            self._no_longer_open(prefill)
        self._settle(now)
        self._owed = min(self._owed, self._open_tokens)
        self._set_clear()
        if self._ended > _MOST_ENDED and 2 * self._ended > len(self._queue):
            self._strike_off_ended(now)

    def observe(self, sample: LoadSample) -> None:
        """Correct what is owed, and fit the rate."""
        now = sample.taken_at_s
        self._settle(now)
        ttft = sample.ttft
        if ttft is not None:
            self._take_first_tokens(ttft.count, ttft.sum_s, now)
        if self._ended:
            self._strike_off_ended(now)
        if sample.running == 0 and sample.waiting == 0:
            while self._queue and self._queue[0].sent_s < now - BASE_S:
                self._pop()
        waiting = int(sample.waiting or 0)
        known = [each for each in self._queue if each.ended_s is None and each.sent_s < now] if waiting else []
        certain = sum([each.tokens for each in known[-waiting:]])
        self._owed = max(min(self._owed, self._open_tokens), certain)
        self.foreign = max(0, waiting - len(known)) * _mean_prompt(sample)
        self._set_clear()

    def _set_clear(self) -> None:
        # When all that is owed is computed: what is left is (clear_at_s - now) x rate. Every pick reads it everywhere.
        self.clear_at_s = self._updated_s + (self._owed + self.foreign) / self.rate

    def _pop(self) -> Prefill:
        """Take out the oldest: its prompt is computed, or nobody wants it any more."""
        prefill = self._queue.popleft()
        prefill.done = True
        if prefill.ended_s is None:
            self._no_longer_open(prefill)
        else:
            self._ended -= 1
        return prefill

    def _no_longer_open(self, prefill: Prefill) -> None:
        self._open_tokens -= prefill.tokens
        if self._ended == len(self._queue) or self._open_tokens < 0.0:
            self._open_tokens = 0.0  # no rest is left of rounding

    def _strike_off_ended(self, now: float) -> None:
        """Take out requests that were over before now: a sample of now has them, or none will."""
        kept: deque[Prefill] = deque()
        for prefill in self._queue:
            if prefill.ended_s is None or prefill.ended_s > now:
                kept.append(prefill)
            else:
                prefill.done = True
        self._ended -= len(self._queue) - len(kept)
        self._queue = kept

    def _settle(self, now: float) -> None:
        """Let what is owed drain up to now: ours, then what is not."""
        if now > self._updated_s:
            keep = exp((self._updated_s - now) / ARRIVALS_S)
            self.requests_per_s *= keep
            self.bound_per_s *= keep
            self._owed -= (now - self._updated_s) * self.rate
            if self._owed < 0.0:
                self.foreign = max(0.0, self.foreign + self._owed)
                self._owed = 0.0
            self._updated_s = now

    def _take_first_tokens(self, count: float, sum_s: float, now: float) -> None:
        before, before_s = self._first_tokens, self._ttft_sum_s
        self._first_tokens, self._ttft_sum_s = count, sum_s
        if before is None or count < before:
            return  # the first sample, or counters that began anew
        new = int(count - before)
        if not new:
            return
        mean_s = (sum_s - before_s) / new
        ahead, done = 0.0, 0
        while done < new and self._queue and self._queue[0].sent_s < now:
            ahead += self._pop().ahead
            done += 1
        if done:
            self._fit(done, ahead, done * mean_s)

    def _fit(self, requests: int, ahead: float, ttft_s: float) -> None:
        keep = 0.5 ** (requests / HALF_LIFE_REQUESTS)
        self._fit_tokens = self._fit_tokens * keep + ahead
        self._fit_s = self._fit_s * keep + max(0.0, ttft_s - requests * BASE_S)
        rate = (self._fit_tokens + PRIOR_TOKENS) / (self._fit_s + self._prior_s)
        self.rate = min(max(rate, MIN_RATE), MAX_RATE)
        self.token_s = 1.0 / self.rate


def _mean_prompt(sample: LoadSample) -> float:
    """Tokens in a prompt of that server, on average since its start; 0 when its page does not tell."""
    if sample.prompt_tokens is None or sample.ttft is None or sample.ttft.count < 1.0:
        return 0.0
    return sample.prompt_tokens / sample.ttft.count
