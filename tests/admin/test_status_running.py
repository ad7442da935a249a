"""The status page of a service that runs, behind real Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extproc.cli._envoy import find_binary
from tests.support import envoy_config
from tests.support.chromium import chromium
from tests.support.envoy_stack import Stack
from tests.support.programs import program
from tests.support.waiting import eventually

pytestmark = pytest.mark.envoy


def scaled(config: Any) -> None:
    envoy_config.settings_of(config).setdefault("pools", {})["vllm"] = {"autoscale": {"max_replicas": 3}}


async def view(stack: Stack, **query: str) -> Any:
    async with stack.client.get(f"http://{stack.service_admin}/status.json", params=query) as answer:
        assert answer.status == 200
        return await answer.json()


async def test_the_service_tells_its_fleet_its_picks_and_its_history(tmp_path: Path) -> None:
    async with Stack(find_binary(), tmp_path, servers=2, change=scaled) as stack:
        for _ in range(3):
            assert (await stack.request()).status == 200
        await stack.nothing_in_flight()
        shown = await view(stack)
        (pool,) = shown["pools"]
        assert {each["address"] for each in pool["endpoints"]} == {f"127.0.0.1:{port}" for port in stack.ports}
        assert (pool["serving"], pool["autoscale"]["max_replicas"]) == (2, 3)
        assert shown["requests"]["picks"] == 3
        assert shown["picks"][0]["picked"] in {each["address"] for each in pool["endpoints"]}
        assert shown["picks"][0]["why"]

        async def ended() -> bool:
            return {each["outcome"] for each in (await view(stack))["picks"]} == {"ok"}

        await eventually(ended, "the access log has told how the requests ended")
        times = shown["history"]["times"]
        assert len(times) >= 1  # the first look is at the start
        assert shown["history"]["pools"]["vllm"]["servers"][-1] in (0, 2)
        news = await view(stack, since=str(times[-1]))
        assert all(at > times[-1] for at in news["history"]["times"])


async def test_a_browser_sees_them(tmp_path: Path) -> None:
    binary = program("chromium", "chromium")
    async with Stack(find_binary(), tmp_path, servers=2, change=scaled) as stack, chromium(binary) as browser:
        assert (await stack.request()).status == 200
        async with browser.page() as page:
            await page.look()
            await page.open(f"http://{stack.service_admin}/")
            await page.until("document.querySelectorAll('#picks tbody tr').length === 1")
            text = await page.text()
            assert all(f"127.0.0.1:{port}" in text for port in stack.ports)
            assert "Recommended servers:" in text
            assert page.complaints == []
