"""The admin HTTP server's drains: /v1/endpoints/{endpoint}/drain, /v1/drains, /v1/drain-victim."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Set
from typing import Any

from aiohttp import web

from extproc.admin.drains import DrainDesk, DrainError
from extproc.admin.guard import same_address
from extproc.admin.query import number
from extproc.endpoint import split_host_port
from extproc.pool.drain import By

INDEX = """\
  /v1/endpoints/HOST:PORT/drain  POST starts a drain (?deadline_s=, ?pool=), DELETE brings the server back, GET shows
  /v1/drains                     all drains
  /v1/drain-victim               which server should go, and why; ?pool=
"""
_DRAIN = re.compile(r"/v1/endpoints/([^/]+)/drain")
_BY = {"operator": By.OPERATOR, "self": By.SELF}


def routes(desk: DrainDesk) -> list[web.RouteDef]:
    """Their routes. All answers are JSON; errors are `{"error": ...}`."""

    async def start(request: web.Request) -> Any:
        query = await _query(request, {"pool", "deadline_s", "by"})
        by = _BY.get(query.get("by", "operator"))
        if by is None:
            raise DrainError(400, "by must be operator or self")
        endpoint = request.match_info["endpoint"]
        answer = desk.start(endpoint, pool=query.get("pool"), deadline=_seconds(query.get("deadline_s")), by=by)
        await _save(answer)
        return answer

    async def cancel(request: web.Request) -> Any:
        query = await _query(request, {"pool"})
        answer = desk.cancel(request.match_info["endpoint"], pool=query.get("pool"))
        await _save(answer)
        return answer

    async def show(request: web.Request) -> Any:
        query = await _query(request, {"pool"})
        return desk.show(request.match_info["endpoint"], pool=query.get("pool"))

    async def every(request: web.Request) -> Any:
        await _query(request, set())
        return desk.every()

    async def victim(request: web.Request) -> Any:
        query = await _query(request, {"pool"})
        return desk.victim(query.get("pool"))

    async def _save(answer: dict[str, Any]) -> None:
        if desk.tell is not None:
            await desk.tell()
        try:
            await desk.save()
        except OSError as error:
            answer["survives_restart"] = False
            answer["warning"] = f"done, but it would not survive a restart: drain.state_file: {error}"

    one = "/v1/endpoints/{endpoint}/drain"
    return [
        web.post(one, _json(start)),
        web.get(one, _json(show)),
        web.delete(one, _json(cancel)),
        web.get("/v1/drains", _json(every)),
        web.get("/v1/drain-victim", _json(victim)),
        web.post("/v1/drain-victim", _json(victim)),
    ]


def asked_by_the_server_itself(request: web.Request) -> bool:
    """Whether a server asks for its own drain, or how that stands: its stop hook, from its own address."""
    if request.method == "POST":
        if request.query.getall("by", []) != ["self"]:
            return False
    elif request.method != "GET":
        return False
    found = _DRAIN.fullmatch(request.path)
    if found is None:
        return False
    try:
        host, _ = split_host_port(found[1])
    except ValueError:
        return False
    return same_address(request.remote, host)


def _json(answer: Callable[[web.Request], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        try:
            return web.json_response(await answer(request))
        except DrainError as error:
            return web.json_response({"error": str(error)}, status=error.status)

    return handler


async def _query(request: web.Request, known: Set[str]) -> dict[str, str]:
    """The query; a mistyped parameter is told, as is one given where it would not be read."""
    unknown = sorted(set(request.query) - known)
    if unknown:
        takes = f"there are: {', '.join(sorted(known))}" if known else "none is taken here"
        raise DrainError(400, f'unknown parameter "{unknown[0]}"; {takes}')
    if request.can_read_body and await request.read():
        raise DrainError(400, "a body is not read; put parameters into the query, as ?deadline_s=120")
    return dict(request.query)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    value = number(text)
    if not 0.0 <= value < math.inf:
        raise DrainError(400, f'deadline_s: "{text[:40]}" is not a number of seconds from 0 on')
    return value
