"""What of a changed configuration can be followed by a service that runs, and what counts only after a restart?

The servers that a pool lists can be followed, with their options. All else is built once at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from extproc.config.settings import EndpointSettings, Settings


@dataclass(frozen=True, slots=True)
class Changes:
    """`endpoints`: the new list of each pool whose list has changed. `restart`: settings by dotted path, in order."""

    endpoints: Mapping[str, tuple[EndpointSettings, ...]]
    restart: tuple[str, ...]


def changes(running: Settings, new: Settings) -> Changes:
    """From the settings that a service runs with to those of its file."""
    endpoints: dict[str, tuple[EndpointSettings, ...]] = {}
    restart = list(_differing(running, new, "", but=("pools",)))
    for name in dict.fromkeys((*running.pools, *new.pools)):
        before, after = running.pools.get(name), new.pools.get(name)
        if before is None or after is None:
            restart.append(f"pools.{name} ({'added' if before is None else 'removed'})")
            continue
        restart += _differing(before, after, f"pools.{name}.", but=("endpoints",))
        listed = before.discovery is None and after.discovery is None
        if listed and before.endpoints != after.endpoints:
            endpoints[name] = after.endpoints
    return Changes(endpoints, tuple(restart))


def _differing(before: BaseModel, after: BaseModel, prefix: str, but: tuple[str, ...] = ()) -> Iterator[str]:
    for name in type(before).model_fields:
        if name in but:
            continue
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _differing(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
