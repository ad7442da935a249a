"""`extproc scale` with the service itself: does what runs on a server end before it is stopped?"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import aiohttp

from extproc.cli._ports import free_port
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.cli.command import Command
from tests.support.waiting import eventually

_LONG_S = 90.0  # a machine that is busy
TOKENS = 300  # about 3 s


async def _stream(http: aiohttp.ClientSession, server: SimServer, tokens: int) -> bytes:
    body = {"model": "sim", "prompt": "hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with http.post(f"{server.url}/v1/completions", json=body) as answer:
        return await answer.read()


async def test_streams_end_before_their_server_is_stopped(tmp_path: Path) -> None:
    admin = f"127.0.0.1:{free_port(0)}"
    config, script = tmp_path / "extproc.json", tmp_path / "fleet.sh"
    script.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    script.chmod(0o755)
    async with SimServer("a", A100_8B) as a, SimServer("b", A100_8B) as b, aiohttp.ClientSession() as http:
        settings = {
            "grpc": {"listen": "127.0.0.1:0"},
            "admin": {"listen": admin},
            "scrape": {"interval_s": 0.1},
            "shutdown_notice_s": 0,
            "pools": {
                "vllm": {
                    "endpoints": [{"address": server.address} for server in (a, b)],
                    "autoscale": {"max_replicas": 1},
                }
            },
        }
        config.write_text(json.dumps(settings))

        async def ready() -> bool:
            async with http.get(f"http://{admin}/status") as answer:
                endpoints = (await answer.json())["pools"]["vllm"]["endpoints"]
            return [each["state"] for each in endpoints] == ["ready", "ready"]

        async with Command("serve", "--config", str(config)) as service:
            await service.says("ready", _LONG_S)
            await eventually(ready, "both servers are ready", timeout_s=_LONG_S)
            streams = {server.address: asyncio.create_task(_stream(http, server, TOKENS)) for server in (a, b)}
            arguments = ("--exec", str(script), "--admin", admin, "--state", str(tmp_path), "--every", "0.2")
            async with Command("scale", "vllm", *arguments) as command:
                await command.says("drains 127.0.0.1", _LONG_S)
                await command.says("stops 127.0.0.1", _LONG_S)
                stopped = re.findall(r"stops (\S+), \d+ s after its drain began: it is drained", command.output)
                assert len(stopped) == 1
                assert streams[stopped[0]].done()
                await command.says(f"stopped {stopped[0]}", _LONG_S)
                await command.says("waits: 1 servers, as recommended", _LONG_S)
                command.signal(signal.SIGTERM)
                assert await command.exit_code(_LONG_S) == 0
            for answer in await asyncio.gather(*streams.values()):
                assert answer.endswith(b"data: [DONE]\n\n")
            service.signal(signal.SIGTERM)
            assert await service.exit_code(_LONG_S) == 0
    assert (tmp_path / "calls").read_text() == f"stop {stopped[0]}\n"
