"""The whole service while its servers change, by their file or by the configuration's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extproc.config.settings import Settings
from extproc.discovery.config_file import Followed
from tests.app.test_application import Running, settings, started
from tests.support.ext_proc_client import BUFFERED, body, destination, headers
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually


@pytest.fixture
async def servers() -> AsyncIterator[tuple[MetricsServer, MetricsServer]]:
    async with MetricsServer().serve() as one, MetricsServer().serve() as two:
        yield one, two


def write(path: Path, content: Any) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content))


async def members(running: Running) -> list[str]:
    return [each["address"] for each in (await running.status())["pools"]["vllm"]["endpoints"]]


async def picked(running: Running) -> str:
    stream = running.client.stream()
    await stream.ask(headers(BUFFERED))
    answer = await stream.ask(body(b'{"model": "m", "prompt": "p"}'))
    return destination(answer).partition(",")[0]


async def test_the_members_are_those_of_the_file_and_a_broken_file_is_told_and_changes_nothing(
    servers: tuple[MetricsServer, MetricsServer], tmp_path: Path
) -> None:
    one, two = (server.address for server in servers)
    path = tmp_path / "servers.json"
    write(path, [one])
    document = settings({}).model_dump()
    document["pools"] = {"vllm": {"discovery": {"file": {"path": str(path), "poll_s": 0.05}}}}
    async with started(Settings.model_validate(document)) as running:
        await eventually(running.serving, "ready")
        assert await picked(running) == one
        write(path, [two])

        async def is_two() -> bool:
            return await members(running) == [two]

        await eventually(is_two, "the file is followed")
        assert await picked(running) == two
        write(path, '["10.0.0.1"')
        await eventually(lambda: running.app.status()["pools"]["vllm"]["failing"], "the mistake is told")
        assert list(running.app.status()["pools"]["vllm"]["failing"]) == [str(path)]
        assert f'extproc_discovery_failing{{name="{path}",pool="vllm"}} 1.0' in (await running.get("/metrics"))[1]
        assert any(f"{path}:1: is not YAML" in warning for warning in (await running.status())["warnings"])
        assert await picked(running) == two


async def test_a_changed_list_in_the_configuration_is_followed_and_what_needs_a_restart_is_shown(
    servers: tuple[MetricsServer, MetricsServer], tmp_path: Path
) -> None:
    one, two = (server.address for server in servers)
    path = tmp_path / "extproc.json"
    before = settings({"vllm": [one]})
    write(path, before.model_dump(mode="json", exclude_none=True))
    async with started(before, Followed(path, "own", lambda read: read)) as running:
        await eventually(running.serving, "ready")
        assert (await running.status())["config_file"] == {"path": str(path), "failing": None, "after_restart": []}
        after = settings({"vllm": [two], "small": [one]}, default_pool="vllm", ready_wait_s=7)
        write(path, after.model_dump(mode="json", exclude_none=True))

        async def is_two() -> bool:
            return await members(running) == [two]

        await eventually(is_two, "the list is followed")
        assert await picked(running) == two
        shown = await running.status()
        assert shown["config_file"]["after_restart"] == ["ready_wait_s", "default_pool", "pools.small (added)"]
        assert any("this counts only after a restart: ready_wait_s" in warning for warning in shown["warnings"])
