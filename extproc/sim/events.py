"""What goes into the engine, and what comes out of it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

NextHash = Callable[[int, int], int]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how long its answer will be. Raises ValueError on lengths below 1.

    `block_hashes` are the chained hashes of the prompt's full blocks, at the engine's block size: ints >= 0, equal
    exactly where the whole text up to the block's end is equal. They may go on past the prompt, into the answer, where
    the caller knows it: that is how the next turn of a chat finds the last one. Past their end
    `next_hash(index, parent)` is asked once for each block, in order; without it the blocks match no other request.
    """

    id: str
    prompt_tokens: int
    max_tokens: int  # the answer has exactly as many
    block_hashes: Sequence[int] = ()
    next_hash: NextHash | None = None
    finish_reason: Literal["stop", "length"] = "length"  # told at the end; the length is max_tokens in any case
    token_events: bool = False  # whether each token after the first is an event, too

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.max_tokens < 1:
            raise ValueError(f"request {self.id}: prompt_tokens and max_tokens must be 1 or more")


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The prompt is computed and one token generated."""

    request_id: str
    at_s: float
    cached_tokens: int  # of the prompt, found in the prefix cache at admission


@dataclass(frozen=True, slots=True)
class Token:
    """A further token; only for requests that asked for token events."""

    request_id: str
    at_s: float
    index: int  # 1 is the second token


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request lost its blocks and waits, at the head of the queue, to be computed again."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request: it has its tokens, or it was aborted."""

    request_id: str
    at_s: float
    reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int  # of the prompt, at its first admission; 0 if it was never admitted
    preemptions: int
    submitted_s: float
    scheduled_s: float | None  # None: it never left the queue
    first_token_s: float | None  # None: it was aborted before


Event = FirstToken | Token | Preempted | Finished
