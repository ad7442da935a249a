"""Was the load test made with servers like those of the pool? What does not fit, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from extproc.autoscale.profile import Server
from extproc.endpoint import Address
from extproc.pool.member import Member

_KV_RATIO = 0.1  # vLLM takes the memory that is left at its start, which differs by a little each time
_MOST_NAMES = 3


def mismatches(tested: Server, members: Iterable[Member], versions: Mapping[Address, str]) -> tuple[str, ...]:
    """One sentence for each thing that differs. What a server does not tell is no difference.

    `versions`: of the engines, as far as they are known.
    """

    def model(member: Member) -> str | None:
        told = member.told_models
        if told is None or tested.model in told:
            return None
        return "serves " + (", ".join(sorted(told)[:_MOST_NAMES]) or "no model")

    def room(member: Member) -> str | None:
        tokens = None if member.sample is None else member.sample.kv_tokens
        if tested.kv_tokens is None or tokens is None or abs(tokens - tested.kv_tokens) <= _KV_RATIO * tested.kv_tokens:
            return None
        return f"has room for {tokens:,}"

    def version(member: Member) -> str | None:
        runs = versions.get(member.address)
        return None if tested.version is None or runs in (None, tested.version) else f"runs {runs}"

    members = sorted(members, key=lambda member: str(member.address))
    found = (
        _first(members, model, f'the model "{tested.model}"'),
        _first(members, room, f"room for {tested.kv_tokens or 0:,.0f} tokens in the KV cache"),
        _first(members, version, f"version {tested.version} of the engine"),
    )
    return tuple(words for words in found if words is not None)


def _first(members: Iterable[Member], differs: Callable[[Member], str | None], tested: str) -> str | None:
    """Only the first server is named: while it is there the words stay the same."""
    for member in members:
        words = differs(member)
        if words is not None:
            return f"the profile was made with {tested}, and {member.address} {words}"
    return None
