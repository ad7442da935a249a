"""Where would this request go, and why did those go where they went? As JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from extproc.admin.status import recent
from extproc.explanation import Explanation
from extproc.request import RawRequest, Route
from extproc.router import Router
from extproc.scheduling.profiles import PROFILES

DEFAULT_PATH = "/v1/chat/completions"
# The HTTP server has undone the compression already; the token is the admin port's.
_NOT_THE_QUESTIONS = frozenset({"content-encoding", "authorization"})
_DIGITS = 4  # of seconds, ratios and tokens: 0.1 ms


class UnknownNameError(LookupError):
    """There is no pool or profile of that name. The message names those that there are."""


def explanation(router: Router, request: RawRequest, now: float) -> dict[str, Any]:
    """Explain where the request would go now; nothing is done.

    Raises:
        UnknownNameError: unlike a request, which the default would get, a question that is mistyped is a mistake.
    """
    pool, profile = request.route
    if pool is not None and pool not in router.plans:
        raise UnknownNameError(f'no pool "{pool}"; there are: {", ".join(router.plans)}')
    if profile is not None and profile not in PROFILES:
        raise UnknownNameError(f'no profile "{profile}"; there are: {", ".join(PROFILES)}')
    return as_json(router.explain(request, now))


def request_of(headers: Mapping[str, str], query: Mapping[str, str], body: bytes) -> RawRequest:
    """The request that a question is about: its body and headers are the question's own."""
    named = {name.lower(): value for name, value in headers.items() if name.lower() not in _NOT_THE_QUESTIONS}
    return RawRequest(
        "POST", query.get("path", DEFAULT_PATH), named, body, Route(query.get("pool"), query.get("profile"))
    )


def decisions(router: Router, limit: int, now: float) -> list[dict[str, Any]]:
    """The decision log, the newest first: picks, how they ended, and why they were made. Ages are in seconds."""
    newest = list(router.decisions)[: -limit - 1 : -1] if limit > 0 else []
    return [recent(each.reservation, now) | {"explanation": as_json(each.explanation)} for each in newest]


def as_json(explained: Explanation) -> dict[str, Any]:
    """Null means unknown, or that it played no part; never zero."""
    document = asdict(explained)
    for row in document["endpoints"]:
        for name, value in row.items():
            if isinstance(value, float):
                row[name] = round(value, _DIGITS)
    return document
