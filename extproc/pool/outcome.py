"""How did a request end, by what Envoy's access log says?"""

from __future__ import annotations

from extproc.decision import Completion, Outcome

_CLIENT_LEFT = frozenset({"downstream_connection_termination", "downstream_remote_reset", "downstream_protocol_error"})
_SERVER_BROKE = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        "stream_idle_timeout",
        "upstream_request_timeout",
    }
)
_SERVER_FULL = frozenset({429, 503})


def classify(completion: Completion) -> Outcome:
    """The outcome of a final completion.

    Flags come before the status: a stream that breaks after its headers has status 200. 429 and 503 that a server
    sent itself are backpressure; a 503 that Envoy made up because it reached nobody is a failure.
    """
    flags = set(completion.flags)
    if flags & _CLIENT_LEFT:
        return Outcome.CANCELLED
    if flags & _SERVER_BROKE:
        return Outcome.FAILED
    status = completion.status
    if status is None:
        return Outcome.UNKNOWN
    if status in _SERVER_FULL and completion.served is not None:
        return Outcome.BACKPRESSURE
    return Outcome.FAILED if status >= 500 else Outcome.OK
