"""What do the servers of a running service say: how long are their requests, and are they like the one under test?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from extproc.autoscale.profile import Server as ServerCard
from extproc.calibrate.client import Server, main_model
from extproc.calibrate.errors import CalibrationError, OptionError, ServerError
from extproc.calibrate.lengths import Independent
from extproc.calibrate.served import lengths_of
from extproc.pool.sample import LoadSample
from extproc.telemetry.vllm_page import parse

_ASK_S = 10.0
_MOST_SERVERS = 64  # asked
_KV_TOLERANCE = 0.05  # each measures its own memory


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of a pool."""

    servers: int
    asked: int  # of these, those that answered
    cards: tuple[ServerCard, ...]
    lengths: Independent | None
    requests: int  # that the lengths are of
    hit_ratio: float | None  # of prompt tokens, those that were found in the caches
    ttft_target_s: float | None  # of the pool's settings


async def look(session: aiohttp.ClientSession, servers: aiohttp.ClientSession, service: str, pool: str | None) -> Fleet:
    """Ask the service at its admin address for the servers of a pool, and each of these with the session `servers`,
    which may have a key. Raises CalibrationError."""
    status = await _json(session, f"{service}/status")
    if isinstance(status, dict) and isinstance(status.get("error"), str):
        raise ServerError(f"{service} refuses: {status['error'][:300]} (here: the variable EXTPROC_ADMIN_TOKEN)")
    pools = status.get("pools") if isinstance(status, dict) else None
    if not isinstance(pools, dict) or not pools:
        raise ServerError(f"what answers at {service} is not this service's admin port (admin.listen)")
    if pool is None and len(pools) > 1:
        raise OptionError(f"the service has several pools; name one with --pool: {', '.join(pools)}")
    name = pool if pool is not None else next(iter(pools))
    if name not in pools:
        raise OptionError(f'the service has no pool "{name}"; it has {", ".join(pools)}')
    addresses = [each["address"] for each in pools[name]["endpoints"]]
    answers = [
        each
        for each in await asyncio.gather(*(_server(servers, address) for address in addresses[:_MOST_SERVERS]))
        if each is not None
    ]
    if not answers:
        raise ServerError(
            f'none of the {len(addresses)} servers of pool "{name}" can be asked from here; give the lengths with'
            " --prompt-tokens and --output-tokens"
        )
    found = lengths_of([page for _, page, _ in answers])
    autoscale = await _json(session, f"{service}/autoscale/v1/pools/{quote(name, safe='')}", or_none=True)
    target = autoscale.get("ttft_target_s") if isinstance(autoscale, dict) else None
    return Fleet(
        servers=len(addresses),
        asked=len(answers),
        cards=tuple(card for card, _, _ in answers),
        lengths=None if found is None else found[0],
        requests=0 if found is None else found[1],
        hit_ratio=_hit_ratio([sample for _, _, sample in answers]),
        ttft_target_s=float(target) if isinstance(target, int | float) else None,
    )


def differences(tested: ServerCard, fleet: Sequence[ServerCard]) -> list[str]:
    """In what the servers of the fleet are not like the one under test, a sentence each."""
    out = []
    for name, words in (("model", "model"), ("version", "engine version"), ("max_model_len", "max_model_len")):
        mine = getattr(tested, name)
        others = {getattr(card, name) for card in fleet} - {None}
        if mine is not None and others and others != {mine}:
            theirs = ", ".join(sorted(map(str, others - {mine})))
            out.append(f"{words} is {mine} here and {theirs} in the fleet")
    rooms = [card.kv_tokens for card in fleet if card.kv_tokens is not None]
    if tested.kv_tokens is not None and rooms:
        far = [room for room in rooms if abs(room / tested.kv_tokens - 1.0) > _KV_TOLERANCE]
        if far:
            span = f"{min(far):,.0f}" + (f" to {max(far):,.0f}" if max(far) > min(far) else "")
            out.append(f"the KV cache has room for {tested.kv_tokens:,.0f} tokens here and {span} in the fleet")
    return out


async def _server(session: aiohttp.ClientSession, address: str) -> tuple[ServerCard, bytes, LoadSample] | None:
    """None: it cannot be asked."""
    server = Server(session, f"http://{address}", None, asyncio.get_running_loop().time)
    try:
        async with asyncio.timeout(_ASK_S):
            cards = await server.models()
            version = await server.version()
            async with session.get(f"{server.url}/metrics") as response:
                page = await response.read() if response.status == 200 else b""
    except (CalibrationError, aiohttp.ClientError, OSError, TimeoutError):
        return None
    main, sample = main_model(cards), parse(page, 0.0)
    return (
        ServerCard(
            model=main.id,
            url=server.url,
            engine="vllm" if sample.usable else None,
            version=version,
            kv_tokens=sample.kv_tokens,
            max_model_len=main.max_model_len,
        ),
        page,
        sample,
    )


def _hit_ratio(samples: Sequence[LoadSample]) -> float | None:
    told = [
        (each.prefix_hits_tokens, each.prefix_queries_tokens)
        for each in samples
        if each.prefix_hits_tokens is not None and each.prefix_queries_tokens
    ]
    queries = sum(query for _, query in told if query is not None)
    hits = sum(hit for hit, _ in told if hit is not None)
    return min(1.0, hits / queries) if queries else None


async def _json(session: aiohttp.ClientSession, url: str, *, or_none: bool = False) -> Any:
    try:
        async with asyncio.timeout(_ASK_S), session.get(url) as response:
            return orjson.loads(await response.read())
    except TimeoutError:
        reason = f"no answer within {_ASK_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    except orjson.JSONDecodeError:
        reason = "no JSON"
    if or_none:
        return None
    raise ServerError(f"{url}: {reason}; is the service running, and is that its admin.listen?")
