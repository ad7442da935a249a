"""`vllm-sim` starts servers, tells where they are, and stops as vLLM does."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
import typer
from typer.testing import CliRunner

from extproc.cli.vllm_sim import vllm_sim


async def start(*options: str) -> tuple[asyncio.subprocess.Process, list[str]]:
    """A process of the command, and the addresses it told: as many as `--count`."""
    count = int(options[options.index("--count") + 1]) if "--count" in options else 1
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import typer; from extproc.cli.vllm_sim import vllm_sim; typer.run(vllm_sim)",
        *("--port", "0", "--preset", "instant", "--log-level", "error"),
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    urls = []
    for _ in range(count):
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        urls.append(line.decode().split()[1])
    return process, urls


async def test_one_process_serves_several_servers_with_the_given_settings(http: aiohttp.ClientSession) -> None:
    process, urls = await start(
        "--count", "2", "--model", "m1", "--model", "m2", "--name", "x", "--num-gpu-blocks", "62502"
    )
    try:
        assert len(set(urls)) == 2
        names = set()
        for url in urls:
            async with http.get(f"{url}/metrics") as response:
                names.add(response.headers["x-vllm-sim"])
                text = await response.text()
            assert 'num_gpu_blocks="62502"' in text
            assert 'model_name="m1"' in text
            async with http.post(f"{url}/v1/completions", json={"model": "m2", "prompt": "a"}) as response:
                assert response.status == 200
        assert names == {"x-0", "x-1"}
        async with http.post(f"{urls[0]}/sim/faults", json={"error_status": 500}) as response:
            assert response.status == 200
        statuses = []
        for url in urls:
            async with http.post(f"{url}/v1/completions", json={"model": "m2", "prompt": "a"}) as response:
                statuses.append(response.status)
        assert statuses == [500, 200]
    finally:
        await http.close()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_second_sigterm_or_a_sigint_stops_it_at_once(http: aiohttp.ClientSession) -> None:
    for signals in ([signal.SIGTERM, signal.SIGTERM], [signal.SIGINT]):
        process, (url,) = await start("--base-step-s", "60", "--shutdown-timeout", "600")
        call = asyncio.ensure_future(http.post(f"{url}/v1/completions", json={"prompt": "a", "stream": True}))
        assert (await call).status == 200
        for one in signals:
            process.send_signal(one)
            await asyncio.sleep(0)
            async with aiohttp.ClientSession() as other:
                try:  # the first signal has been handled when this is answered or refused
                    async with other.get(f"{url}/health"):
                        pass
                except aiohttp.ClientError:
                    pass
        assert await asyncio.wait_for(process.wait(), 20) == 0
        (await call).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "a100-8b", "--num-gpu-blocks", "100"], "lower max_model_len or add blocks"),
        (["--metrics", "dead"], "metrics: 'dead' is none of"),
        (["--preset", "h100"], "h100"),
    ],
)
def test_a_mistake_is_told_with_its_cure(options: list[str], message: str) -> None:
    app = typer.Typer()
    app.command()(vllm_sim)
    result = CliRunner().invoke(app, options, env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert message in result.output


async def test_what_arrived_is_on_disk_when_the_server_is_killed(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    process, (url,) = await start("--request-log", str(path), "--base-step-s", "0.02", "--name", "s")
    try:
        ask = {"model": "sim", "prompt": "a", "max_tokens": 1}
        async with http.post(f"{url}/v1/completions", json=ask, headers={"x-request-id": "r1"}) as response:
            assert response.status == 200
        async with http.post(f"{url}/v1/completions", json={"model": "no"}) as response:
            assert response.status == 400
        long = {**ask, "max_tokens": 5000, "stream": True}
        async with http.post(f"{url}/v1/completions", json=long, headers={"x-request-id": "r2"}) as response:
            await response.content.readline()
            process.kill()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["request"], line["what"], line.get("status")) for line in lines] == [
        ("r1", "arrived", None),
        ("r1", "answered", 200),
        (None, "arrived", None),
        (None, "answered", 400),
        ("r2", "arrived", None),
    ]
    assert {line["server"] for line in lines} == {"s-0"}
    assert sorted(line["at_s"] for line in lines) == [line["at_s"] for line in lines]


def test_a_request_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(vllm_sim)
    result = CliRunner().invoke(app, ["--request-log", str(tmp_path / "none" / "log")])
    assert result.exit_code == 2
    assert "No such file or directory" in " ".join(result.output.replace("│", " ").split())
