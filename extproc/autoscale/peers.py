"""How many requests have come for a pool, if several processes in front of it count only their own?

Their counters are added up by what they grew since each process was first heard: so the sum does not fall when one is
restarted, goes, or comes. What a new process counted before it was heard is left out, which is a second's worth.
"""

from __future__ import annotations

from collections import OrderedDict

from extproc.autoscale.known import known

SILENT_S = 5.0  # when a peer could not be asked for so long, how many requests came is unknown
_MOST_PROCESSES = 256  # those not heard for longest are forgotten


class Peers:
    """The other processes in front of one pool."""

    def __init__(self, own_id: str) -> None:
        self.requests = 0.0  # that came to them
        self._own_id = own_id
        self._counters: OrderedDict[str, float] = OrderedDict()  # by process, the one last heard at the end

    def told(self, process: str, requests: float) -> None:
        """A process says how many have come to it since its start. The same one may be heard at several addresses."""
        if process == self._own_id or known(requests) is None:
            return
        before = self._counters.pop(process, requests)
        self._counters[process] = requests
        self.requests += max(0.0, requests - before)
        if len(self._counters) > _MOST_PROCESSES:
            self._counters.popitem(last=False)
