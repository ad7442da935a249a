"""What does an Envoy that a test runs tell of itself, and has it had any objection?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import aiohttp

from extproc.cli._envoy import EnvoyProcess

# What must not stand in Envoy's log. The second is what it says when a pick comes after the host was chosen.
_FORBIDDEN = ("[critical]", "headers are already sent", "[error]")
_OBJECTIONS = ("spurious_msgs_received", "rejected_header_mutations")


async def is_up(envoy: EnvoyProcess, client: aiohttp.ClientSession, admin: str) -> bool:
    """Raises what ended it, if it has ended. `admin`: the URL of its admin port."""
    if not envoy.running:
        await envoy.wait()
        raise envoy.failure()
    try:
        async with client.get(f"{admin}/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def counters(client: aiohttp.ClientSession, admin: str) -> dict[str, int]:
    async with client.get(f"{admin}/stats?format=json&type=Counters") as response:
        found = await response.json(content_type=None)
    return {stat["name"]: stat["value"] for stat in found["stats"] if "value" in stat}


def ext_proc_counter(stats: Mapping[str, int], name: str) -> int:
    return sum(value for key, value in stats.items() if key.endswith(f"ext_proc.{name}"))


def check_counters(stats: Mapping[str, int]) -> None:
    """Nothing that the service answered was objected to."""
    counted = {key: value for key, value in stats.items() if key.endswith(_OBJECTIONS)}
    assert counted, "Envoy has no ext_proc counters: is the filter there?"
    assert not any(counted.values()), f"Envoy objects to the service's answers: {counted}"


def check_log(lines: Iterable[str]) -> None:
    objections = [line for line in lines if any(text in line for text in _FORBIDDEN)]
    assert not objections, "Envoy's log:\n" + "\n".join(objections[:5])
