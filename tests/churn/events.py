"""What happens to the fleet and the service? One coroutine a kind of event; each gives a line of what it did.

Events that take a server away name its pool: they wait while the pool has too few (`Churn.may_take`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

import aiohttp

from tests.churn.servers import Server
from tests.churn.verdict import Drained, Happening
from tests.support.envoy_stack import eventually

if TYPE_CHECKING:
    from tests.churn.front import Service
    from tests.churn.run import Churn

_FLAPS = 4

Event = Callable[["Churn", str], Awaitable[str]]


# Drains ---------------------------------------------------------------------------------------------------------------


async def drain_and_stop(churn: Churn, name: str) -> str:
    """An operator takes a server out for good: drain, wait, SIGTERM, off the list."""
    server = churn.take("vllm")
    words = await _drained_and_stopped(churn, name, server)
    server.listed = False
    churn.write_list()
    return words


async def restart(churn: Churn, name: str) -> str:
    """A server gets a new version: drain, wait, SIGTERM, start at the same address, back in service."""
    server = churn.take("vllm")
    words = await _drained_and_stopped(churn, name, server)
    await server.start()
    churn.drains[-1 - [d.event for d in reversed(churn.drains)].index(name)].until_s = time.time()
    await churn.on_all_services("DELETE", f"/v1/endpoints/{server.address}/drain")
    server.busy = False
    return f"{words}; started again, back"


async def drain_and_cancel(churn: Churn, name: str) -> str:
    """An operator changes his mind while streams run."""
    server = churn.take("vllm")
    drained = await _drain(churn, name, server)
    await asyncio.sleep(1.0)
    running = len(server.open_requests())
    drained.until_s = time.time()
    await churn.on_all_services("DELETE", f"/v1/endpoints/{server.address}/drain")
    server.busy = False
    return f"{server.name}: drained for 1 s, {running} streams running; back"


async def _drain(churn: Churn, name: str, server: Server) -> Drained:
    """Ask both processes; from when both have said so nothing new may come."""
    path = f"/v1/endpoints/{server.address}/drain?deadline_s={churn.options.deadline_s:g}"
    answers = await churn.on_all_services("POST", path)
    drained = Drained(server.address, name, time.time())
    churn.drains.append(drained)
    assert all(answer["phase"] in ("draining", "drained") for answer in answers), answers
    return drained


async def _drained_and_stopped(churn: Churn, name: str, server: Server) -> str:
    drained = await _drain(churn, name, server)
    running = len(server.open_requests())

    async def over() -> list[str] | None:
        phases = []
        for service in churn.front.services:
            try:
                answer = await churn.front.ask(service, "GET", f"/v1/endpoints/{server.address}/drain")
            except (aiohttp.ClientError, TimeoutError):
                return None  # that process is being restarted
            phases.append(answer["phase"])
        return phases if all(phase in ("drained", "expired") for phase in phases) else None

    phases = await eventually(over, f"{server.name} is drained", timeout_s=churn.options.deadline_s + 30)
    took_s = time.time() - drained.ack_s
    still = server.open_requests()
    if "expired" in phases:
        churn.problems.append(f"{name}: the drain of {server.name} expired after {took_s:.1f} s, {len(still)} open")
    elif still:
        churn.problems.append(f"{name}: {server.name} was called drained with {len(still)} requests running")
    at_s = await server.terminate()
    drained.until_s = time.time()
    churn.happenings.append(Happening("stop", server.address, name, at_s, time.time()))
    return f"{server.name}: {running} streams ran, drained after {took_s:.1f} s, stopped"


# Servers die, come, and are replaced ----------------------------------------------------------------------------------


async def kill(churn: Churn, name: str) -> str:
    """A server dies under its streams, and comes back at its address after a while."""
    server = churn.take("vllm")
    running = len(server.open_requests())
    at_s = await server.kill()
    churn.happenings.append(Happening("kill", server.address, name, at_s, time.time()))
    await asyncio.sleep(churn.rng(name).uniform(1.0, 3.0))
    await server.start()
    server.busy = False
    return f"{server.name}: kill -9 with {running} streams; started again"


async def add(churn: Churn, name: str) -> str:
    """A new server joins, and gets requests."""
    return await _join(churn, "vllm", churn.write_list, "joined")


async def _join(churn: Churn, pool: str, say: Callable[[], object], how: str) -> str:
    """`say`: tells the source of the pool."""
    server = await churn.new_server(pool)
    server.listed = True
    say()
    took_s = await _used(churn, server)
    server.busy = False
    return f"{server.name} {how}; first request after {took_s:.1f} s"


async def _used(churn: Churn, server: Server) -> float:
    """Ask new things until a server that was just listed gets a request; how long that took, in seconds.

    Without new things it could take long: conversations stay where they are cached.
    """
    at_s = time.time()
    for number in range(200):
        if server.requests():
            return time.time() - at_s
        await churn.load.ask(0, 1, prompt=f"{server.name} {number}: new. " * 200, srv=server.pool == "vllm-srv")
        await asyncio.sleep(0.1)
    raise AssertionError(f"{server.name} gets no request")


async def reuse(churn: Churn, name: str) -> str:
    """A server dies, and at once another one has its address: it must inherit neither prefixes nor counts."""
    old, text = await _holder(churn, name)
    held = [await _held(churn, service, old.address, text) for service in churn.front.services]
    doomed = [asyncio.create_task(churn.load.ask(0, 200, prompt=text)) for _ in range(3)]
    await eventually(lambda: old.open_requests() or all(task.done() for task in doomed), "streams run there")
    running = len(old.open_requests())
    at_s = await old.kill()
    churn.happenings.append(Happening("kill", old.address, name, at_s, time.time()))
    old.listed = False
    new = await churn.new_server("vllm", port=old.port)
    new.listed = True
    churn.write_list()

    async def forgotten() -> bool:
        return not any([await _held(churn, service, new.address, text) for service in churn.front.services])

    async def counts_are_its_own() -> bool:
        """A process that was restarted counts less; a request on its way may be counted for a moment. One that was
        picked for the address while nobody listened there runs elsewhere: the process that picked it counts it here to
        its end, if the log entry that tells went to the other process."""
        counted = 0
        for service in churn.front.services:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # it is away: it counts nothing
                found = await churn.front.endpoint(service, "vllm", new.address)
                counted += found["in_flight"] if found else 0
        return counted <= len(new.open_requests())

    for what, holds in (("prefixes", forgotten), ("counts", counts_are_its_own)):
        try:
            await eventually(holds, what, timeout_s=15 + 60 * churn.options.scale)
        except AssertionError:
            churn.problems.append(f"{name}: {new.name} inherits {what} of {old.name} at {new.address}")
    await asyncio.gather(*doomed)
    new.busy = False
    if not any(held):
        churn.problems.append(f"{name}: no process believed that {old.name} held the prompt, so nothing is shown")
    return (
        f"{old.name} killed with {running} streams, holding {max(held):.0f} tokens; {new.name} at its port holds none"
    )


async def _holder(churn: Churn, name: str) -> tuple[Server, str]:
    """A server that may be taken, and a prompt that only it has served."""
    for number in range(100):
        text = f"Prompt {number} of {name}. " + "Nobody else has ever seen a word of it. " * 60
        outcome = await churn.load.ask(0, 2, prompt=text)
        found = next((s for s in churn.servers if f"{s.name}-{s.port}" == outcome.server), None)
        if found is not None and not found.busy and churn.may_take("vllm"):
            return churn.take("vllm", wanted=found), text
        await asyncio.sleep(0.2)
    raise AssertionError("no server that may be taken got one of a hundred prompts")


async def _held(churn: Churn, service: Service, address: str, text: str) -> float:
    """Tokens of the prompt that a process believes cached there; one that is away believes nothing, now or later."""
    body = churn.load.body(0, 2, prompt=text)
    try:
        explained = await churn.front.explain(service, body)
    except (aiohttp.ClientError, TimeoutError):
        return 0.0
    row = next((each for each in explained["endpoints"] if each["address"] == address), None)
    return float(row["held_tokens"] or 0) if row else 0.0


# The sources change ---------------------------------------------------------------------------------------------------


async def broken_file(churn: Churn, name: str) -> str:
    """A slip of the hand in the file: the last good list stays."""
    text = churn.front.endpoints.read_text()
    before = await churn.front.hosts("vllm")
    churn.front.write(text[: len(text) // 2])
    await asyncio.sleep(2.0)
    during = await churn.front.hosts("vllm")
    churn.write_list()
    if during != before and not before <= during:
        churn.problems.append(f"{name}: a broken file took {sorted(before - during)} from Envoy")
    return f"half a file for 2 s: Envoy kept {len(during)} servers"


async def swap(churn: Churn, name: str) -> str:
    """In one edit a server comes, and another is struck off without a drain; its streams go on to their ends."""
    old = churn.take("vllm")
    new = await churn.new_server("vllm")
    old.listed, new.listed = False, True
    running = len(old.open_requests())
    churn.write_list()

    async def known() -> bool:
        hosts = await churn.front.hosts("vllm")
        return new.address in hosts and old.address not in hosts

    await eventually(known, f"Envoy has {new.name} in the place of {old.name}")
    new.busy = False
    await eventually(lambda: not old.open_requests(), f"the streams of {old.name} end", timeout_s=120)
    at_s = await old.terminate()
    churn.happenings.append(Happening("stop", old.address, name, at_s, time.time()))
    return f"{new.name} for {old.name}, whose {running} streams ended by themselves"


async def weights(churn: Churn, name: str) -> str:
    """All servers in another order, with other weights: nobody leaves."""
    servers = churn.listed("vllm")
    churn.rng(name).shuffle(servers)
    before = await churn.front.hosts("vllm")
    entries = [{"address": s.address, "weight": 1 + n % 2} for n, s in enumerate(servers)]
    churn.front.write(json.dumps({"endpoints": entries}))
    await asyncio.sleep(1.5)
    lost = before - await churn.front.hosts("vllm")
    if lost & {server.address for server in churn.listed("vllm")}:
        churn.problems.append(f"{name}: {sorted(lost)} left Envoy when only weights changed")
    return f"{len(servers)} servers in another order, with weights 1 and 2"


async def dns_adds(churn: Churn, name: str) -> str:
    """One more SRV record."""
    return await _join(churn, "vllm-srv", churn.write_records, "joined by an SRV record")


async def dns_removes(churn: Churn, name: str) -> str:
    """An SRV record is gone: the server's streams go on to their ends."""
    server = churn.take("vllm-srv")
    server.listed = False
    running = len(server.open_requests())
    churn.write_records()

    async def gone() -> bool:
        return server.address not in await churn.front.hosts("vllm-srv")

    await eventually(gone, f"Envoy has {server.name} no more")
    await eventually(lambda: not server.open_requests(), f"the streams of {server.name} end", timeout_s=120)
    at_s = await server.terminate()
    churn.happenings.append(Happening("stop", server.address, name, at_s, time.time()))
    return f"{server.name} without a record: its {running} streams ended by themselves"


# The service, and a server that cannot make up its mind ---------------------------------------------------------------


async def restart_service(churn: Churn, name: str) -> str:
    """One of the two processes ends in order and starts again; the other is there meanwhile."""
    return await _service_again(churn, name, signal.SIGTERM)


async def kill_service(churn: Churn, name: str) -> str:
    """One of the two processes is killed."""
    return await _service_again(churn, name, signal.SIGKILL)


async def _service_again(churn: Churn, name: str, number: signal.Signals) -> str:
    async with churn.service_lock:
        service = churn.next_service()
        drains = await churn.front.ask(service, "GET", "/v1/drains")
        before = {each["endpoint"] for each in drains}
        from_s = time.time()
        await service.end(number)
        gone_s = time.time()
        await service.start()
        await churn.front.until_ready(service)
        churn.happenings.append(Happening("service", service.name, name, from_s, time.time()))
        after = {each["endpoint"] for each in await churn.front.ask(service, "GET", "/v1/drains")}
        forgotten = {a for a in before - after if a in {s.address for s in churn.servers if s.listed}}
        if forgotten:
            churn.problems.append(f"{name}: service {service.name} forgot the drains of {sorted(forgotten)}")
        await churn.front.until_used(service)
    how = "SIGTERM" if number == signal.SIGTERM else "kill -9"
    kept = f", {len(before & after)} drains kept" if before else ""
    took = f"gone after {gone_s - from_s:.1f} s, back after {time.time() - from_s:.1f} s"
    return f"service {service.name}: {how}, {took}{kept}"


async def flap(churn: Churn, name: str) -> str:
    """A server is full and sick, and well again, several times."""
    server = churn.take("vllm")
    from_s = time.time()
    for _ in range(_FLAPS):
        await server.set_faults(error_status=503, health="error", metrics="error")
        await asyncio.sleep(0.7)
        await server.set_faults(error_status=None, health="ok", metrics="ok")
        await asyncio.sleep(0.7)
    churn.happenings.append(Happening("flap", server.address, name, from_s, time.time()))
    server.busy = False
    return f"{server.name}: 503 and sick {_FLAPS} times for 0.7 s"


# Each with the pool that it takes a server from; None: none.
KINDS: dict[str, tuple[Event, str | None]] = {
    "drain + stop": (drain_and_stop, "vllm"),
    "kill -9": (kill, "vllm"),
    "service restart": (restart_service, None),
    "add": (add, None),
    "restart": (restart, "vllm"),
    "port reused": (reuse, "vllm"),
    "swap in file": (swap, "vllm"),
    "dns adds": (dns_adds, None),
    "service kill -9": (kill_service, None),
    "dns removes": (dns_removes, "vllm-srv"),
    "flapping": (flap, "vllm"),
    "broken file": (broken_file, None),
    "weights": (weights, None),
    "drain cancelled": (drain_and_cancel, "vllm"),
}
FULL = {
    "drain + stop": 4,
    "kill -9": 4,
    "service restart": 4,
    "add": 4,
    "restart": 3,
    "drain cancelled": 1,
    "port reused": 2,
    "swap in file": 2,
    "dns adds": 1,
    "dns removes": 1,
    "service kill -9": 1,
    "flapping": 1,
    "broken file": 1,
    "weights": 1,
}
SHORT = ("drain + stop", "kill -9", "service restart", "add", "restart", "port reused", "swap in file", "dns adds")


def schedule(rng: Random, count: int) -> list[str]:
    """Kinds of events in seeded order: all of `FULL` for 30; fewer: the first so many of `SHORT` in any order."""
    if count <= len(SHORT):
        kinds = list(SHORT[:count])
    else:
        every = [kind for kind, times in FULL.items() for _ in range(times)]
        kinds = [every[n % len(every)] for n in range(count)]
    rng.shuffle(kinds)
    return kinds
