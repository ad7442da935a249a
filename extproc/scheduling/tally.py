"""How were requests placed, and how much of their prompts did the servers chosen hold?

Plain counts since start, for one pool. They are added to at each pick, so they cost about a microsecond.
"""

from __future__ import annotations

from collections import Counter

from extproc.request import ApiKind, InferenceRequest
from extproc.scheduling.profiles import By
from extproc.scheduling.work import Work

# Why a request had no prefix to look up, beside the reasons of `NoPrompt`.
NOT_READ = "not_read"  # the profile does not read bodies
TOO_SHORT = "too_short"  # its prompt does not fill a block


class ApiTally:
    """The requests of one API."""

    __slots__ = ("held_tokens", "picks", "prompt_tokens")

    def __init__(self) -> None:
        self.picks = 0
        self.prompt_tokens = 0.0  # estimated
        self.held_tokens = 0.0  # of those, what the first choice was believed to hold

    @property
    def held_ratio(self) -> float | None:
        """Between 0 and 1; None: there was no prompt yet."""
        return self.held_tokens / self.prompt_tokens if self.prompt_tokens else None


class Tally:
    """The requests of one pool."""

    def __init__(self) -> None:
        self.ways: Counter[By] = Counter()  # that decided
        self.apis = {kind: ApiTally() for kind in ApiKind}  # of the requests whose bodies the profile reads
        self.keyless: Counter[str] = Counter()  # by the reason why there was no prefix to look up

    def add(self, by: By, request: InferenceRequest | None, *, blocks: int, work: Work, slot: int) -> None:
        """A pick: the way that decided, what was read (None: nothing), full blocks of its prompt, the server's slot."""
        self.ways[by] += 1
        if request is None:
            self.keyless[NOT_READ] += 1
            return
        api = self.apis[request.kind]
        api.picks += 1
        if request.no_prompt is not None:
            self.keyless[request.no_prompt] += 1
            return
        if not blocks:
            self.keyless[TOO_SHORT] += 1
        tokens, held = work.prompt_tokens, work.held_at(slot)
        api.prompt_tokens += tokens
        api.held_tokens += held if held < tokens else tokens
