"""What does Envoy hand us of one HTTP request?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request before anything of it is understood. Nothing here is validated: it is a stranger's input."""

    method: str = ""  # "" where the exchange shape does not tell
    path: str = ""  # with the query; "" where the exchange shape does not tell
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names; only those Envoy sent us
    body: bytes = b""
    pool: str | None = None  # chosen by the route's configuration; None: the default pool
    # Addresses the gateway restricts the pick to (`host:port`, or a bare IP); None: no restriction.
    subset: frozenset[str] | None = None
