"""What is there to see when a fleet is at work? Six simulated servers, real Envoy, the service, and clients that come
and go; then one server is drained, one fails, and one does not tell its load.

    python -m tests.support.status_scene SECONDS FOLDER

runs that for a while and writes the pictures of the docs into the folder: the status page in Chromium, light and dark
(and in a narrow window, to look at), and `extproc top`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image
from rich.console import Console

from extproc.cli._admin import Admin
from extproc.cli._envoy import find_binary
from extproc.cli._top_source import Heard, heard
from extproc.cli._top_view import Look, picture
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.support import envoy_config
from tests.support.chromium import Browser, chromium
from tests.support.envoy_stack import Stack
from tests.support.programs import program

SERVERS = 6
CLIENTS = 64
MODEL = "llama-3-8b"
# Few places and little memory, so that some dozen requests show as waiting and as KV usage.
SPEC = replace(A100_8B.slowed(3.0), max_num_seqs=8, num_gpu_blocks=1600, max_model_len=16_384, jitter_ratio=0.1)
_CONVERSATIONS = 24
_PREFIX_WORDS = 1500
_WORDS = ("the", "server", "keeps", "what", "was", "computed", "for", "a", "prompt", "and", "uses", "it", "again")
_WAVE_S = 240.0  # from one peak of the load to the next
_TROUBLE_S = 20.0  # for the troubles to show


@contextlib.asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[Stack, list[SimServer]]]:
    """Clients send requests all the time."""

    def change(config: Any) -> None:
        pools = envoy_config.settings_of(config).setdefault("pools", {})
        pools["vllm"] = {"autoscale": {"max_replicas": 12, "ttft_p99_s": 2.0}}

    options = ServerOptions(models=(MODEL,))
    ports = [envoy_config.free_port() for _ in range(SERVERS)]
    servers = [SimServer(f"gpu-{i}", SPEC, "127.0.0.1", port, options=options, seed=i) for i, port in enumerate(ports)]
    async with contextlib.AsyncExitStack() as running:
        for server in servers:
            await running.enter_async_context(server)
        stack = Stack(find_binary(), folder, servers=ports, change=change, quick=False)
        stack.check_at_end = False  # servers fail on purpose
        async with stack, asyncio.TaskGroup() as tasks:
            began_s = time.monotonic()
            clients = [tasks.create_task(_client(stack, number, began_s)) for number in range(CLIENTS)]
            yield stack, servers
            for each in clients:
                each.cancel()


async def _client(stack: Stack, number: int, began_s: float) -> None:
    draw = random.Random(number)
    while True:
        phase = 2 * math.pi * (time.monotonic() - began_s) / _WAVE_S
        if number / CLIENTS > 0.6 - 0.4 * math.cos(phase):
            await asyncio.sleep(1.0)
            continue
        conversation = min(int(draw.expovariate(0.15)), _CONVERSATIONS)
        prefix = random.Random(conversation).choices(_WORDS, k=_PREFIX_WORDS)
        prompt = " ".join([*prefix, *draw.choices(_WORDS, k=40)])
        body = {"model": MODEL, "prompt": prompt, "max_tokens": draw.randint(50, 300)}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with stack.client.post(f"{stack.url}/v1/completions", json=body) as answer:
                await answer.read()
        await asyncio.sleep(draw.expovariate(0.5))


async def _trouble(stack: Stack, servers: list[SimServer]) -> None:
    async with stack.client.post(f"http://{stack.service_admin}/v1/endpoints/{servers[1].address}/drain") as answer:
        assert answer.status == 200, await answer.text()
    servers[2].set_faults(error_status=500)
    servers[4].set_faults(metrics="error")
    await asyncio.sleep(_TROUBLE_S)


async def _pictures(seconds: float, folder: Path) -> None:
    binary = program("chromium", "chromium")
    with tempfile.TemporaryDirectory() as scratch:
        async with scene(Path(scratch)) as (stack, servers), chromium(binary) as browser:
            await asyncio.sleep(seconds)
            await _trouble(stack, servers)
            url = f"http://{stack.service_admin}"
            await _page(browser, url, folder / "status-light.png")
            await _page(browser, url, folder / "status-dark.png", dark=True)
            await _page(browser, url, folder / "status-narrow.png", width=400)
            await asyncio.to_thread(_top, url, folder / "top.svg")


async def _page(browser: Browser, url: str, file: Path, **look: Any) -> None:
    async with browser.page() as page:
        await page.look(**({"width": 1280, "height": 1400} | look))
        await page.open(f"{url}/")
        await page.until("document.querySelectorAll('#pools tbody tr').length > 0")
        png = Image.open(io.BytesIO(await page.picture())).convert("RGB")
        png.quantize(256).save(file, optimize=True)  # a fifth of the size, and looks the same
        assert page.complaints == [], page.complaints


def _top(url: str, file: Path) -> None:
    admin = Admin(url)
    answer = heard(Heard(), lambda _: admin.ask("GET", "/status.json", {}), time.time())
    console = Console(
        record=True, width=132, height=32, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(picture(answer, Look(), width=132, height=32, url=url))
    svg = console.export_svg(title="extproc top")
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # nothing is loaded from elsewhere


if __name__ == "__main__":
    asyncio.run(_pictures(float(sys.argv[1]), Path(sys.argv[2])))
