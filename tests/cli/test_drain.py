"""Draining over the command line: a service process, simulated vLLM servers, and streams that run through both."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from extproc.cli._ports import free_port
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.cli.command import Command
from tests.support.ext_proc_client import BUFFERED, Client, Stream, body, destination
from tests.support.waiting import eventually

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True, "ignore_eos": True}


class Answer:
    """A stream as Envoy has it: one to the service while the request lasts, and one from the server that it named."""

    def __init__(self, picked: str, held: Stream, response: aiohttp.ClientResponse) -> None:
        self.picked = picked
        self._held = held
        self.response = response

    async def end(self) -> None:
        self.response.close()
        await self._held.end()


@dataclass
class Ground:
    """Two servers, a configuration, and free ports for a service over them."""

    config: Path
    grpc_port: int
    admin: str
    servers: list[SimServer]
    http: aiohttp.ClientSession
    open: list[aiohttp.ClientResponse] = field(default_factory=list)

    def service(self) -> Command:
        return Command("serve", "--config", str(self.config))

    def drain(self, *arguments: str, env: dict[str, str] | None = None) -> Command:
        return Command("drain", *arguments, "--admin", self.admin, env=None if env is None else {**os.environ, **env})

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.servers[number].port}"

    async def ready(self, service: Command) -> None:
        await service.says("ready")
        await eventually(lambda: self.states({"ready"}), "both servers are ready")

    async def states(self, wanted: set[str]) -> bool:
        async with self.http.get(f"http://{self.admin}/status") as answer:
            endpoints = (await answer.json())["pools"]["vllm"]["endpoints"]
        return {each["state"] for each in endpoints} == wanted

    async def shown(self, number: int) -> Any:
        async with self.http.get(f"http://{self.admin}/v1/endpoints/{self.address(number)}/drain") as answer:
            return await answer.json()

    async def stream(self, tokens: int = 4000) -> Answer:
        """Send one request; it is answered for as long as it has tokens (about 8 ms each)."""
        content = json.dumps(CHAT | {"max_tokens": tokens}).encode()
        held = self.client.stream()
        picked = destination(await held.ask(body(content, first_with_mode=BUFFERED))).partition(",")[0]
        response = await self.http.post(f"http://{picked}/v1/chat/completions", data=content)
        self.open.append(response)
        assert response.status == 200
        await response.content.readline()
        return Answer(picked, held, response)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}", options) as channel:
            self.client = Client(channel)
            yield

    async def streams_on(self, number: int, count: int) -> list[Answer]:
        """So many streams on that server, and on no other."""
        found: list[Answer] = []
        while len(found) < count:
            answer = await self.stream()
            if answer.picked == self.address(number):
                found.append(answer)
            else:
                await answer.end()
        return found


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(SimServer(name, A100_8B)) for name in "ab"]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        grpc_port, admin = free_port(0), f"127.0.0.1:{free_port(0)}"
        settings = {
            "grpc": {"listen": f"127.0.0.1:{grpc_port}"},
            "admin": {"listen": admin},
            "scrape": {"interval_s": 0.1},
            "shutdown_notice_s": 0,
            "drain": {"state_file": str(tmp_path / "drains.json")},
            "pools": {"vllm": {"endpoints": [{"address": f"127.0.0.1:{server.port}"} for server in servers]}},
        }
        config = tmp_path / "extproc.json"
        config.write_text(json.dumps(settings))
        ground = Ground(config, grpc_port, admin, servers, http)
        yield ground
        for response in ground.open:
            response.close()


async def test_a_drain_ends_when_the_last_stream_has_ended(ground: Ground) -> None:
    """case f01"""
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        first, second = await ground.streams_on(0, 2)
        async with ground.drain(ground.address(0), "--wait") as drain:
            await drain.says("waits for 2 in flight")
            assert {(await ground.stream(1)).picked for _ in range(5)} == {ground.address(1)}
            await first.end()
            await drain.says("waits for 1 in flight")
            shown = await ground.shown(0)
            assert (shown["state"], shown["blocked_by"], shown["by"]) == ("draining", "in_flight", "operator")
            await second.end()
            assert await drain.exit_code() == 0, drain.output
            assert f"{ground.address(0)}: drained: it is safe to stop" in drain.output
        await service.says("is drained after")


async def test_requests_that_others_sent_there_are_waited_for(ground: Ground) -> None:
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        url = f"http://{ground.address(0)}/v1/chat/completions"
        foreign = await ground.http.post(url, json=CHAT | {"max_tokens": 4000})
        ground.open.append(foreign)
        async with ground.drain(ground.address(0), "--wait") as drain:
            await drain.says("waits for its engine: 1 running, 0 waiting")
            foreign.close()
            assert await drain.exit_code() == 0, drain.output


async def test_past_the_deadline_it_says_how_many_were_open(ground: Ground) -> None:
    """case f01"""
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        await ground.streams_on(0, 2)
        async with ground.drain(ground.address(0), "--wait", "--deadline", "1") as drain:
            assert await drain.exit_code() == 3, drain.output
            assert "not drained in time: 2 requests still running" in drain.output
        async with ground.http.get(f"http://{ground.admin}/metrics") as answer:
            page = await answer.text()
        assert 'extproc_drains_ended_total{pool="vllm",result="expired"} 1.0' in page
        assert 'extproc_drain_open_requests_total{pool="vllm"} 2.0' in page


async def test_an_undrained_server_is_back_at_once(ground: Ground) -> None:
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        await ground.streams_on(0, 1)
        async with ground.drain(ground.address(0), "--wait") as drain:
            await drain.says("waits for 1 in flight")
            async with Command("undrain", ground.address(0), "--admin", ground.admin) as undrain:
                assert await undrain.exit_code() == 0
                assert undrain.output == f"{ground.address(0)}: ready\n"
            assert await drain.exit_code() == 4, drain.output
        await ground.streams_on(0, 1)


async def test_a_drain_survives_kill_9_of_the_service_and_who_waits_does_too(ground: Ground) -> None:
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        [answer] = await ground.streams_on(0, 1)
        async with ground.drain(ground.address(0), "--wait", "--deadline", "60") as drain:
            await drain.says("waits for 1 in flight")
            before = await ground.shown(0)
            service.signal(signal.SIGKILL)
            await service.exit_code()
            await drain.says("the service is away, asking again")
            async with ground.service() as successor:
                await successor.says(f"{ground.address(0)} is draining (asked by operator")
                await drain.says("waits for its engine: 1 running, 0 waiting")
                after = await ground.shown(0)
                assert (after["state"], after["by"]) == ("draining", "operator")
                assert abs(after["started"] - before["started"]) < 0.1
                assert after["deadline_s"] < before["deadline_s"], "it went on while the service was away"
                answer.response.close()
                assert await drain.exit_code() == 0, drain.output


async def test_without_a_state_file_the_drain_is_begun_anew_after_a_restart(ground: Ground) -> None:
    settings = json.loads(ground.config.read_text())
    del settings["drain"]
    ground.config.write_text(json.dumps(settings))
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        [answer] = await ground.streams_on(0, 1)
        async with ground.drain(ground.address(0), "--wait") as drain:
            await drain.says("waits for 1 in flight")
            service.signal(signal.SIGKILL)
            await service.exit_code()
            async with ground.service():
                await drain.says("has forgotten the drain: begun anew")
                await drain.says("waits for its engine: 1 running, 0 waiting")
                answer.response.close()
                assert await drain.exit_code() == 0, drain.output


async def test_a_server_drains_itself_and_is_back_when_its_successor_answers(ground: Ground) -> None:
    env = {"POD_IP": "127.0.0.1"}
    port = ground.servers[0].port
    arguments = ("--self", "--port", str(port), "--wait")
    async with ground.drain(*arguments, env=env) as drain:
        await drain.says("asking again for 60 s")
        async with ground.service() as service, ground.connected():
            assert await drain.exit_code() == 0, drain.output
            assert (await ground.shown(0))["by"] == "self"
            await ground.servers[0].kill()
            await ground.servers[0].start()
            await eventually(lambda: ground.states({"ready"}), "the new server gets requests", timeout_s=20)
            await service.says("is back")


async def test_the_victim_is_the_server_with_the_fewest_tokens_in_flight(ground: Ground) -> None:
    async with ground.service() as service, ground.connected():
        await ground.ready(service)
        await ground.streams_on(0, 1)
        async with ground.drain("--victim") as proposal:
            assert await proposal.exit_code() == 0
            assert "fewest tokens in flight: at most 0 (next 4,000)" in proposal.output
            assert proposal.output.endswith(f"{ground.address(1)}\n")
        assert await ground.states({"ready"}), "nothing is done by naming one"
        async with ground.drain("--victim", "--wait") as drain:
            assert await drain.exit_code() == 0, drain.output
        assert (await ground.shown(1))["state"] == "drained"
        async with ground.drain("--victim") as again:
            assert await again.exit_code() == 1
            assert "no server should go now: 1 ready, and the floor is 1" in again.output
        async with ground.drain("--list") as listed:
            assert await listed.exit_code() == 0
            assert re.search(rf"{ground.address(1)} +vllm +drained +operator +0 +- +-", listed.output)


async def test_an_explicit_drain_of_the_last_server_is_obeyed_with_a_warning(ground: Ground) -> None:
    async with ground.service() as service:
        await ground.ready(service)
        for number, warned in ((0, False), (1, True)):
            async with ground.drain(ground.address(number)) as drain:
                assert await drain.exit_code() == 0
                assert ("no ready server is left in pool vllm" in drain.output) is warned


@pytest.mark.skipif(shutil.which("curl") is None, reason="the hook in the manual needs curl")
async def test_the_pre_stop_hook_of_the_manual_waits_for_the_drain_and_bears_with_a_restart(ground: Ground) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "drain.md").read_text()
    [hook] = re.findall(r"      - -c\n      - \|\n(.*?)```", manual, re.DOTALL)
    hook = textwrap.dedent(hook).replace("extproc-admin:9003", ground.admin).replace("$POD_IP:8000", ground.address(0))
    shell = await asyncio.create_subprocess_exec("sh", "-c", hook, stdout=asyncio.subprocess.PIPE)
    try:
        async with ground.service() as service:
            await service.says(f"{ground.address(0)} is draining (asked by self")
            url = f"http://{ground.address(0)}/v1/chat/completions"
            foreign = await ground.http.post(url, json=CHAT | {"max_tokens": 4000})
            ground.open.append(foreign)
            service.signal(signal.SIGKILL)
            await service.exit_code()
        async with ground.service() as service:
            await service.says(f"{ground.address(0)} is draining (asked by self")
            assert shell.returncode is None
            foreign.close()
            output, _ = await asyncio.wait_for(shell.communicate(), 20)
            assert shell.returncode == 0
            assert b'"phase": "drained"' in output
    finally:
        if shell.returncode is None:
            shell.kill()
            await shell.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "give one of: ENDPOINT, --victim, --self, --list"),
        (("10.0.0.1:8000", "--list"), 2, "give one of"),
        (("--self",), 2, "--self needs to know which server it is"),
        (("10.0.0.1:8000", "--deadline", "-1"), 2, "should be greater than or equal to 0"),
        (("10.0.0.1:8000",), 5, "no service at http://127.0.0.1:"),
        (("--self", "--address", "10.0.0.1:8000", "--away", "0"), 5, "no service at http://127.0.0.1:"),
        (("--self", "--address", "10.0.0.1"), 2, "has no port"),
    ],
)
async def test_what_cannot_be_done_is_told_with_its_exit_status(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("POD_IP", "EXTPROC_SELF")}
    async with Command("drain", *arguments, "--admin", f"127.0.0.1:{free_port(0)}", env=env) as command:
        assert await command.exit_code() == code
        assert words in " ".join(re.sub("[│\n]", " ", command.output).split())


async def test_an_unknown_server_is_refused_with_those_that_there_are(ground: Ground) -> None:
    async with ground.service() as service:
        await ground.ready(service)
        async with ground.drain("10.9.9.9:8000") as drain:
            assert await drain.exit_code() == 1
            assert f"no endpoint 10.9.9.9:8000; there are: {ground.address(0)}, {ground.address(1)}" in drain.output
