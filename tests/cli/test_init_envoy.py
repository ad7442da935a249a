"""Does real Envoy take what `extproc init` writes, and route by it?"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.cli._envoy import find_binary
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.cli.command import Command
from tests.support.envoy_config import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.envoy

FLEETS = ("10.0.0.1:8000", "[fd00::10]:8000 [::ffff:10.0.0.1]:8001", "vllm-0.example:8000 no:8000 10.0.0.1:8000")
KINDS = (
    ["--shape=body-first", "--autoscale=9", "--workers=3"],
    ["--shape=headers-then-body", "--model=yes", "--model=org/name:tag"],
    ["--shape=full-duplex", "--profile=session"],
    ["--servers-file=servers.yaml", "--model=m", "--autoscale=9"],
)


def test_envoy_takes_each_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--mode validate` reads all of it, and resolves no name."""
    from typer.testing import CliRunner

    from extproc.cli.main import app

    monkeypatch.chdir(tmp_path)
    ports = ["--listen=[::]:18080", "--envoy-admin=127.0.0.1:19901"]
    for number, (fleet, kind) in enumerate(zip(itertools.cycle(FLEETS), [*KINDS, *KINDS[:2]], strict=False)):
        file = tmp_path / f"{number}.yaml"
        arguments = ["init", "--no-probe", "--force", "--server", fleet, *kind, *ports, "--out", str(file)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        envoy = [str(find_binary()), "--mode", "validate", "--log-level", "warning", "-c", str(file)]
        said = subprocess.run(envoy, capture_output=True, text=True, check=False)
        assert said.returncode == 0, f"{kind}, {fleet}:\n{said.stdout}{said.stderr}"
        assert "deprecated" not in said.stderr.lower()


@pytest.fixture
async def servers() -> AsyncIterator[list[SimServer]]:
    """Two, on ports that nobody is used to."""
    async with contextlib.AsyncExitStack() as stack:
        options = ServerOptions(models=("tiny",), record=True)
        yield [await stack.enter_async_context(SimServer(n, A100_8B, options=options)) for n in ("a", "b")]


@pytest.mark.parametrize("kind", [[], ["--servers-file={folder}/servers.yaml"]], ids=["static", "servers-file"])
async def test_what_init_writes_serves(servers: list[SimServer], tmp_path: Path, kind: list[str]) -> None:
    """From two servers to an answer through real Envoy, picked by the service, without a look into the file."""
    file = tmp_path / "envoy.yaml"
    data, grpc, admin, envoy_admin = (free_port() for _ in range(4))
    ports = [
        f"--listen=127.0.0.1:{data}",
        f"--grpc={grpc}",
        f"--admin=127.0.0.1:{admin}",
        f"--envoy-admin={envoy_admin}",
    ]
    listed = [f"--server=127.0.0.1:{servers[0].port}", f"--server=localhost:{servers[1].port}"]
    more = [each.format(folder=tmp_path) for each in kind]
    async with Command("init", *listed, *ports, *more, "--out", str(file)) as command:
        assert await command.exit_code() == 0, command.output
    assert command.output.count("tiny; 0 running") == 2
    async with Command("up", str(file)) as up, aiohttp.ClientSession() as client:
        await up.says("Envoy serves on", timeout_s=90)

        async def status() -> Any:
            async with client.get(f"http://127.0.0.1:{admin}/status") as response:
                return await response.json()

        async def both_ready() -> bool:
            return [each["state"] for each in (await status())["pools"]["vllm"]["endpoints"]] == ["ready", "ready"]

        await eventually(both_ready, "both servers are ready", timeout_s=90)
        body = {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}

        async def answered_by_pick() -> bool:
            """Envoy's first health check of the service may not have been there yet."""
            async with client.post(f"http://127.0.0.1:{data}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                assert (await response.json())["choices"][0]["message"]["content"]
            return bool((await status())["requests"]["picks"].get("vllm"))

        await eventually(answered_by_pick, "a request is picked", timeout_s=90)
        picked = (await status())["recent"][0]["picked"]
        assert picked in {f"127.0.0.1:{each.port}" for each in servers}
        async with client.post(f"http://127.0.0.1:{data}/v1/chat/completions", json=body | {"model": "x"}) as response:
            assert response.status == 404
            assert "does not exist" in (await response.json())["error"]["message"]
