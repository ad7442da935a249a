"""The configuration file changes while the service runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.config import load
from extproc.config.check import check
from extproc.config.load import Kind
from extproc.config.settings import AdminSettings, EndpointSettings, Settings
from extproc.discovery.config_file import ConfigFile, Followed
from tests.support.waiting import eventually

ENVOY = Path(__file__).parents[2] / "envoy" / "envoy.yaml"
OWN = 'pools: {vllm: {endpoints: [{address: "10.0.0.1:8000"}]}}\n'
STEP_S = 0.02


async def soon(_: float) -> None:
    await asyncio.sleep(STEP_S)


class Service:
    """What a service does with its file."""

    def __init__(self, path: Path, kind: Kind) -> None:
        running = load(path).settings
        assert running is not None
        self.lists: list[tuple[str, list[str]]] = []
        self.file = ConfigFile(Followed(path, kind, _overridden), _overridden(running), self._replace, sleep=soon)

    def _replace(self, pool: str, endpoints: tuple[EndpointSettings, ...]) -> None:
        self.lists.append((pool, [endpoint.address for endpoint in endpoints]))


def _overridden(settings: Settings) -> Settings:
    """As with --admin on the command line."""
    return settings.model_copy(update={"admin": AdminSettings(listen="127.0.0.1:9993")})


@asynccontextmanager
async def following(path: Path, kind: Kind = "own") -> AsyncIterator[Service]:
    service = Service(path, kind)
    task = asyncio.create_task(service.file.run())
    try:
        yield service
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def delete(path: Path) -> None:
    path.unlink()


async def looks() -> None:
    """Long enough for several."""
    await asyncio.sleep(10 * STEP_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "extproc.yaml"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """The first check of an envoy.yaml takes seconds, for what it imports; a service has done it when it starts."""
    check(load(ENVOY))


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "extproc.discovery.config_file")


async def test_a_changed_list_of_servers_is_followed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(path) as service:
        await looks()
        assert service.lists == []
        write(path, OWN.replace("10.0.0.1", "10.0.0.2"))
        await eventually(lambda: service.lists, "the new list")
        write(path, OWN)
        await eventually(lambda: len(service.lists) == 2, "the list as it was")
    assert service.lists == [("vllm", ["10.0.0.2:8000"]), ("vllm", ["10.0.0.1:8000"])]
    assert service.file.status() == {"path": str(path), "failing": None, "after_restart": []}
    assert caplog.messages == []


async def test_what_needs_a_restart_is_named_once_and_the_servers_are_followed_all_the_same(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(path) as service:
        write(path, OWN.replace("10.0.0.1", "10.0.0.2") + "max_body_bytes: 2048\nscrape: {interval_s: 1}\n")
        await eventually(lambda: service.lists, "the new list")
        write(path, OWN + "scrape: {interval_s: 1}\nmax_body_bytes: 2048\n")
        await eventually(lambda: len(service.lists) == 2, "the list as it was")
        assert sorted(service.file.restart) == ["max_body_bytes", "scrape.interval_s"]
        write(path, OWN)
        await eventually(lambda: not service.file.restart, "the change was taken back")
    assert caplog.messages == [
        f"{path} has changed; this counts only after a restart: scrape.interval_s, max_body_bytes"
    ]


async def test_a_broken_file_keeps_what_runs_is_told_as_check_does_and_heals(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = f'{path}:2: scheduling.profile: unknown "cache-awre"; did you mean "cache-aware"?'
    async with following(path) as service:
        write(path, OWN.replace("10.0.0.1", "10.0.0.2") + "scheduling: {profile: cache-awre}\n")
        await eventually(lambda: service.file.failing, "the mistake is told")
        assert service.file.failing == said
        await looks()
        assert service.lists == []
        write(path, OWN.replace("10.0.0.1", "10.0.0.3"))
        await eventually(lambda: service.lists == [("vllm", ["10.0.0.3:8000"])], "the good list")
        assert service.file.failing is None
    assert caplog.messages == [
        f"error: {said} [setting-value]",
        f"{path} has changed and cannot be used, because of the errors above; what runs is kept",
        f"{path} is good again",
    ]


async def test_a_file_that_is_gone_or_of_the_other_kind_keeps_what_runs(path: Path) -> None:
    async with following(path) as service:
        delete(path)
        await eventually(lambda: service.file.failing == f"{path}: there is no such file", "it is gone")
        write(path, ENVOY.read_text())
        await eventually(lambda: "was no envoy.yaml and is an envoy.yaml now" in str(service.file.failing), "the kind")
        assert service.lists == []


async def test_of_new_servers_in_an_envoy_yaml_it_is_said_that_envoy_does_not_know_them_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "envoy.yaml"
    text = ENVOY.read_text()
    path.write_text(text)
    loaded = load(path)
    assert loaded.settings is not None
    ((name, pool),) = loaded.settings.pools.items()
    before = [endpoint.address for endpoint in pool.endpoints]
    host, _, port = before[0].rpartition(":")
    once = f"port_value: {port}"
    assert text.count(once) == 1
    async with following(path, "envoy") as service:
        await looks()
        write(path, text.replace(once, "port_value: 18999"))
        await eventually(lambda: service.lists, "the new list")
    assert service.lists == [(name, [f"{host}:18999", *before[1:]])]
    (message,) = caplog.messages
    assert message.startswith(f"{path} has changed; pool {name} has new: {host}:18999. Envoy reads its file only when")


async def test_servers_listed_for_an_eds_cluster_are_told_to_envoy_by_the_service_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "envoy.yaml"
    lines = ENVOY.with_name("envoy-eds.yaml").read_text().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.strip().startswith("discovery:")]
    indent = lines[at][: lines[at].index("d")]
    lines[at : at + 2] = [f'{indent}endpoints: [{{address: "10.0.0.1:8000"}}]\n']
    text = "".join(lines)
    path.write_text(text)
    assert load(path).problems == ()
    async with following(path, "envoy") as service:
        await looks()
        write(path, text.replace("10.0.0.1:8000", "10.0.0.2:8000"))
        await eventually(lambda: service.lists == [("vllm", ["10.0.0.2:8000"])], "the new list")
    assert caplog.messages == []
