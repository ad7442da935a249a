"""What became of the requests of a step, as their client saw it?

Times to first token count from when a request was due, not from when it could be sent: a client that is late must not
make the server look better.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import fmean


@dataclass(slots=True)
class Sent:
    """One request. Times are of the event loop's clock; None: not yet."""

    due_s: float
    sent_s: float | None = None
    first_s: float | None = None  # its first token came
    last_s: float | None = None  # its last one so far
    ended_s: float | None = None
    prompt_tokens: int | None = None  # as the server counted
    output_tokens: int | None = None
    cached_tokens: int | None = None
    intervals_s: array[float] = field(default_factory=lambda: array("d"))  # between tokens
    status: int | None = None  # of an answer other than 200
    error: str | None = None  # how it failed
    abandoned: bool = False  # by us: the step was over

    @property
    def late_s(self) -> float | None:
        return None if self.sent_s is None else self.sent_s - self.due_s

    @property
    def ok(self) -> bool:
        """It has its whole answer."""
        return self.ended_s is not None and self.error is None and not self.abandoned

    def ttft_s(self) -> float:
        """Infinite: there is none yet, or it failed."""
        return inf if self.error is not None or self.first_s is None else self.first_s - self.due_s

    def got(self, now: float, tokens: int) -> None:
        """So many tokens have come at once."""
        if self.first_s is None or self.last_s is None:
            self.first_s = self.last_s = now
            tokens -= 1
        if tokens:
            self.intervals_s.extend([(now - self.last_s) / tokens] * tokens)
        self.last_s = now

    def end(self, now: float) -> None:
        """All has come. Events may have carried several tokens each: the intervals are made those of tokens."""
        self.ended_s = now
        events = len(self.intervals_s)
        if events and self.output_tokens is not None and self.output_tokens - 1 > events:
            tokens = (self.output_tokens - 1) / events
            self.intervals_s = array("d", (each / tokens for each in self.intervals_s))


def decided(sent: Sequence[Sent], now: float, target_s: float) -> list[float]:
    """The times to first token of all that are due longer ago than the target: of each it is known whether it is over.

    `sent` is in order of arrival.
    """
    times: list[float] = []
    for each in sent:
        if each.due_s > now - target_s:
            break
        times.append(each.ttft_s())
    return times


def quantile(values: Iterable[float], part: float) -> float | None:
    """The smallest value that at least this part of all does not exceed. None: there is none, or it is infinite."""
    ordered = sorted(values)
    if not ordered:
        return None
    value = ordered[max(0, ceil(part * len(ordered)) - 1)]
    return None if value == inf else value


@dataclass(frozen=True, slots=True)
class Times:
    """Of the requests of a step, in seconds; None: not known."""

    ttft_mean: float | None = None  # with those that still waited as if their first token had come at the end
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    interval_mean: float | None = None  # between the tokens of an answer
    interval_p50: float | None = None
    interval_p99: float | None = None
    stay_mean: float | None = None  # from due to the last token
    late_p99: float | None = None  # the client
    errors: int = 0
    prompt_tokens: float | None = None  # mean
    output_tokens: float | None = None  # mean
    cached_tokens: float | None = None  # mean


def times(sent: Sequence[Sent], until_s: float) -> Times:
    """`until_s`: when the step was over. One that waited still has a time to first token of at least so long."""
    ttft = [until_s - each.due_s if each.first_s is None and each.error is None else each.ttft_s() for each in sent]
    finite = [each for each in ttft if each != inf]
    intervals = [interval for each in sent for interval in each.intervals_s]
    whole = [each for each in sent if each.ok]
    return Times(
        ttft_mean=_mean(finite),
        ttft_p50=quantile(ttft, 0.5),
        ttft_p99=quantile(ttft, 0.99),
        interval_mean=_mean(intervals),
        interval_p50=quantile(intervals, 0.5),
        interval_p99=quantile(intervals, 0.99),
        stay_mean=_mean([each.last_s - each.due_s for each in whole if each.last_s is not None]),
        late_p99=quantile([each.late_s for each in sent if each.late_s is not None], 0.99),
        errors=sum(each.error is not None for each in sent),
        prompt_tokens=_mean([each.prompt_tokens for each in whole if each.prompt_tokens is not None]),
        output_tokens=_mean([each.output_tokens for each in whole if each.output_tokens is not None]),
        cached_tokens=_mean([each.cached_tokens for each in whole if each.cached_tokens is not None]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
