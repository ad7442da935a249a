"""Does the next turn of a chain of stored responses reach the server that has the last one?"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.support import envoy_config
from tests.support.envoy_stack import Answer, Stack

PATH = "/v1/responses"


class Storing:
    """A server's store: answers as vLLM does, streamed or whole, and says "not found" of what it has not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: list[str] = []

    async def __call__(self, request: web.Request, body: bytes) -> web.StreamResponse:
        asked = json.loads(body) if body else {}
        previous = asked.get("previous_response_id") or (request.path.split("/")[3] if request.path != PATH else None)
        if previous is not None and previous not in self.stored:
            return web.json_response({"error": {"message": f"Response with id '{previous}' not found."}}, status=404)
        made = asked.get("request_id") or f"resp_{self.name}_{len(self.stored)}"
        self.stored.append(made)
        value = {"id": made, "object": "response", "by": self.name}
        if not asked.get("stream"):
            return web.json_response(value)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in ({"response": value, "type": "response.created"}, {"type": "response.completed"}):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response


def _storing(stack: Stack) -> None:
    for index, upstream in enumerate(stack.upstreams):
        upstream.respond = Storing(str(index))


async def _ask(stack: Stack, previous: str | None = None, **fields: object) -> Answer:
    asked = {"model": "m", "input": "and then?", **fields}
    if previous is not None:
        asked["previous_response_id"] = previous
    return await stack.request(path=PATH, body=json.dumps(asked).encode())


def _id_in(answer: Answer) -> str:
    text = answer.body.decode()
    value = json.loads(text if text.startswith("{") else text.partition("data: ")[2].partition("\n")[0])
    found: str = value.get("response", value)["id"]
    return found


async def test_chains_stay_where_they_are_stored_when_the_responses_pass_us(start: Any) -> None:
    """Case c15: eight chains of five turns, streamed and whole in turn, none of which says who it is."""
    stack: Stack = await start(shape="C", change=envoy_config.full_duplex_both_ways)
    _storing(stack)
    last: dict[int, str | None] = dict.fromkeys(range(8))
    for number in range(5):
        for chain, previous in last.items():
            answer = await _ask(stack, previous, stream=(number + chain) % 2 == 0)
            assert answer.status == 200, answer.body
            last[chain] = _id_in(answer)
    for stored in last.values():
        answer = await stack.request(method="GET", path=f"{PATH}/{stored}", body=None)
        assert answer.status == 200, answer.body
    await stack.nothing_in_flight()


async def test_in_the_shipped_shape_an_id_of_the_clients_own_keeps_a_chain_together(start: Any) -> None:
    """Case c15: the response does not pass us, so only what the request says is known."""
    stack: Stack = await start(shape="A")
    _storing(stack)
    for chain in range(8):
        previous = None
        for number in range(4):
            mine = f"resp_{chain}_{number}"
            answer = await _ask(stack, previous, request_id=mine)
            assert (answer.status, _id_in(answer)) == (200, mine)
            previous = mine
    await stack.nothing_in_flight()


async def test_in_the_shipped_shape_a_session_key_keeps_a_chain_together(start: Any) -> None:
    stack: Stack = await start(shape="A", profile="session")
    _storing(stack)
    for chain in range(8):
        previous = None
        for _ in range(4):
            answer = await _ask(stack, previous, user=f"chain {chain}")
            assert answer.status == 200, answer.body
            previous = _id_in(answer)
    await stack.nothing_in_flight()
