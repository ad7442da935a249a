"""Which server has the response that a request names?

`POST /v1/responses` with `previous_response_id`, and GET, DELETE and cancel of a response, can be answered only by the
server that made it: vLLM keeps responses in its own memory (with VLLM_ENABLE_RESPONSES_API_STORE=1) and says "not
found" of all others. An id is a stranger's text, so its hash is kept: memory is bounded by the number of ids.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import Generic, Protocol, TypeVar

from xxhash import xxh3_64_intdigest

MAX_IDS = 65_536  # about 10 MB
TTL_S = 24 * 3600.0  # conversations are taken up again the next morning; vLLM itself never lets go


class Server(Protocol):
    """Something that has responses until it is gone."""

    @property
    def gone(self) -> bool: ...


S = TypeVar("S", bound=Server)


class StoredResponses(Generic[S]):
    """Servers by the ids of the responses they have. Time comes in as `now`: monotonic, in seconds."""

    def __init__(self, *, max_ids: int = MAX_IDS, ttl_s: float = TTL_S) -> None:
        """Above `max_ids` the ids not used for longest go. `ttl_s`: an id not used for so long is forgotten.

        Raises:
            ValueError: `max_ids` is below 1.
        """
        if max_ids < 1:
            raise ValueError(f"max_ids {max_ids} must be at least 1")
        self._max_ids = max_ids
        self._ttl_s = ttl_s
        self._known: OrderedDict[int, tuple[S, float]] = OrderedDict()  # with the time of last use; oldest first

    def __len__(self) -> int:
        return len(self._known)

    def who(self, response_id: str, now: float) -> S | None:
        """The server that has it; None: unknown, too long ago, or the server is gone."""
        found = self._known.get(_key(response_id))
        if found is None or found[0].gone or found[1] < now - self._ttl_s:
            return None
        return found[0]

    def put(self, response_id: str, server: S, now: float) -> None:
        """The server has it, or has just been asked about it. What was said of the id before no longer counts."""
        known, key = self._known, _key(response_id)
        known[key] = (server, now)
        known.move_to_end(key)
        oldest_s = now - self._ttl_s
        while len(known) > self._max_ids or next(iter(known.values()))[1] < oldest_s:
            known.popitem(last=False)

    def forget(self, servers: Container[S]) -> None:
        """These have lost what they had. Takes as long as looking at all ids: some milliseconds."""
        for key in [key for key, (server, _) in self._known.items() if server in servers]:
            del self._known[key]


def _key(response_id: str) -> int:
    """64 bits: that any two of all ids kept share one, and so a server, has a chance of 10^-10."""
    return xxh3_64_intdigest(response_id.encode("utf-8", "surrogatepass"))
