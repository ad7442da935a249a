"""What is noted of one decision, for its trace: whose child it is, and what it went by?

Only traced requests have a note. Like an explanation it holds nothing of the prompt, the session key or the cache salt.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.placement import UNIT_TOKENS, Placed
from extproc.pool.member import Member
from extproc.prefix.blocks import blocks_within
from extproc.request import InferenceRequest
from extproc.serving import NAME_CHARS


class Note:
    """Filled in by `Router.route`. What played no part in the decision, or is unknown, is None."""

    __slots__ = (
        "api",
        "expected_s",
        "held_blocks",
        "held_tokens",
        "in_flight",
        "model",
        "panic",
        "parent",
        "parent_state",
        "pool",
        "profile",
        "prompt_blocks",
        "prompt_tokens",
        "waiting",
        "way",
    )

    def __init__(self, parent: str | None = None, parent_state: str | None = None) -> None:
        """`parent`, `parent_state`: the request's `traceparent` and `tracestate`; None: it begins a trace."""
        self.parent = parent
        self.parent_state = parent_state
        self.asked("", "", None)

    def asked(self, pool: str, profile: str, request: InferenceRequest | None) -> None:
        """The decision begins, or begins anew. `request`: None if it was not read."""
        self.pool = pool
        self.profile = profile
        self.api: str | None = None if request is None else request.kind
        # What the client wrote, not yet made fit to be shown (see `serving.shown`).
        self.model: str | None = None if request is None or request.model is None else request.model[:NAME_CHARS]
        self.way: str | None = None  # what decided
        self.panic = False  # every server looked bad, so all were used
        self.prompt_tokens: float | None = None  # estimated from the length
        self.prompt_blocks: int | None = None
        self.held_tokens: float | None = None  # by the chosen server
        self.held_blocks: int | None = None
        self.expected_s: float | None = None  # to the first token, there
        self.waiting: float | None = None  # requests there, by its last sample
        self.in_flight: int | None = None  # requests of ours there, without this one

    def placed(self, placed: Placed, candidates: Sequence[Member], now: float, *, panic: bool) -> None:
        """There is a choice, and nothing is done about it yet."""
        first = placed.order[0]
        member = candidates[first]
        self.way = placed.by.name.lower()
        self.panic = panic
        self.in_flight = member.in_flight
        if now <= member.usable_until_s:
            self.waiting = member.waiting
        if placed.costs_s:
            self.expected_s = placed.costs_s[first]
        if placed.request is not None and placed.request.no_prompt is None:
            held = placed.work.held_at(member.slot)
            self.prompt_tokens = placed.work.prompt_tokens
            self.prompt_blocks = len(placed.blocks.hashes)
            self.held_tokens = min(held, placed.work.prompt_tokens)
            self.held_blocks = blocks_within(int(held) // UNIT_TOKENS)
