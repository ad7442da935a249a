"""How many requests may a server have at once that has hardly begun any yet?

A server that has just come up is empty, so every rule finds it the best: without a bound a burst of hundreds goes there
while an engine's first requests are its slowest, and all of them wait for what only the first had to wait for. So it
begins with `FIRST` at once. Each that has had its first token (the count of vLLM's histogram, over the engine's life)
allows two more, as each acknowledgement does for a connection that starts slowly: sample by sample 8, 24, 72. After
`ENOUGH` it is as any other. What counts is the engine's life, not ours: servers that were up before us are warm, one
that was restarted is not.
"""

from __future__ import annotations

from extproc.pool.sample import LoadSample

FIRST = 8  # prompts of a thousand tokens: what an engine computes in a step or two
ENOUGH = 64


class WarmUp:
    """One server's bound."""

    __slots__ = ("_begun", "_ended", "most")

    def __init__(self) -> None:
        self.most: int | None = None  # requests in flight; None: there is no bound
        self._begun = 0.0  # by the last sample
        self._ended = 0  # of ours, since it began anew: what has ended needs no first token (an embedding has none)

    def observe(self, sample: LoadSample) -> None:
        """A page that does not tell what was begun sets no bound."""
        if sample.ttft is None:
            self.most = None
            return
        begun = sample.ttft.count
        if begun < self._begun:  # another process
            self._ended = 0
        self._begun = begun
        done = max(int(begun), self._ended)
        self.most = None if done >= ENOUGH else FIRST + 2 * done

    def ended(self) -> None:
        """One of our requests there is over."""
        self._ended += 1
