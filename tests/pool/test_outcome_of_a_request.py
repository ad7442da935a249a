"""How did a request end, by Envoy's word?"""

from __future__ import annotations

import pytest

from extproc.decision import Completion, Outcome
from extproc.pool.outcome import classify
from tests.support.fleet import address


@pytest.mark.parametrize(
    ("status", "flags", "reached", "outcome"),
    [
        (200, (), True, Outcome.OK),
        (400, (), True, Outcome.OK),
        (404, (), True, Outcome.OK),
        (429, (), True, Outcome.BACKPRESSURE),
        (503, (), True, Outcome.BACKPRESSURE),
        (503, ("upstream_retry_limit_exceeded",), True, Outcome.BACKPRESSURE),
        (500, (), True, Outcome.FAILED),
        (502, (), True, Outcome.FAILED),
        (503, ("upstream_connection_failure",), True, Outcome.FAILED),
        (503, ("no_healthy_upstream",), False, Outcome.FAILED),
        (200, ("upstream_remote_reset",), True, Outcome.FAILED),  # broke after its headers
        (504, ("upstream_request_timeout",), True, Outcome.FAILED),
        (0, ("downstream_connection_termination",), True, Outcome.CANCELLED),
        (200, ("downstream_remote_reset",), True, Outcome.CANCELLED),
        (200, ("downstream_remote_reset", "upstream_remote_reset"), True, Outcome.CANCELLED),
        (None, (), False, Outcome.UNKNOWN),
    ],
)
def test_flags_come_before_the_status(
    status: int | None, flags: tuple[str, ...], reached: bool, outcome: Outcome
) -> None:
    """case e15: 4xx are the client's, 429 and 503 of the server's own are backpressure"""
    completion = Completion("p", address(1) if reached else None, status=status or None, flags=flags)
    assert classify(completion) is outcome
