"""Servers from a watched file: what it may hold, and what happens while it is written."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from extproc.cli.check import check
from extproc.config import load
from extproc.config.discovery_settings import DiscoverySettings, FileDiscoverySettings
from extproc.config.endpoints_file import read
from extproc.config.settings import PoolSettings
from extproc.discovery import watched
from extproc.discovery.choose import source_of
from extproc.discovery.file import FileSource
from extproc.discovery.source import EndpointSet
from tests.support.waiting import eventually

STEP_S = 0.02


async def soon(_: float) -> None:
    await asyncio.sleep(STEP_S)


class Seen:
    def __init__(self, path: Path) -> None:
        self.source = FileSource(PoolSettings(), FileDiscoverySettings(path=str(path)), sleep=soon)
        self.sets: list[EndpointSet] = []

    @property
    def shown(self) -> list[list[str]]:
        return [[str(endpoint.address) for endpoint in found] for found in self.sets]

    async def until(self, *addresses: str) -> None:
        await eventually(lambda: self.sets and self.shown[-1] == list(addresses), f"the set {addresses}")

    async def failing(self, text: str) -> None:
        await eventually(lambda: text in "".join(self.source.failing.values()), f"it says {text!r}")


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Seen]:
    seen = Seen(path)

    async def watch() -> None:
        async with aclosing(seen.source.watch()) as sets:
            async for found in sets:
                seen.sets.append(found)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_item_is_an_address_a_section_or_a_group_as_in_prometheus() -> None:
    text = b"""
endpoints:
- 10.0.0.1:8000
- "[fd00::10]:8000"
- address: 10.0.0.2:8000
  weight: 2
  model: a, b
  metrics_port: 9100
  drained: true
- targets: ["10.0.0.3:8000", "vllm.test:8000"]
  labels: {rack: r1}
  weight: 0.5
"""
    entries, problems = read(text, "servers.yaml")
    assert problems == ()
    assert entries is not None
    assert [(e.address, e.weight, e.model, e.metrics_port, e.drained) for e in entries] == [
        ("10.0.0.1:8000", 1.0, (), None, False),
        ("[fd00::10]:8000", 1.0, (), None, False),
        ("10.0.0.2:8000", 2.0, ("a", "b"), 9100, True),
        ("10.0.0.3:8000", 0.5, (), None, False),
        ("vllm.test:8000", 0.5, (), None, False),
    ]


@pytest.mark.parametrize("text", ['["10.0.0.1:8000"]', '[{"targets": ["10.0.0.1:8000"], "labels": {"a": "b"}}]'])
def test_json_will_do_and_a_list_alone_too(text: str) -> None:
    entries, problems = read(text.encode(), "servers.json")
    assert problems == ()
    assert entries is not None
    assert [entry.address for entry in entries] == ["10.0.0.1:8000"]


@pytest.mark.parametrize("text", ["[]", "endpoints: []", '{"endpoints": []}', "- targets: []"])
def test_an_empty_list_is_nobody(text: str) -> None:
    assert read(text.encode(), "servers.yaml") == ((), ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "servers.yaml: is empty; write [] if the pool shall have no servers"),
        ("# nothing\n", "servers.yaml: is empty; write [] if the pool shall have no servers"),
        ("null", "servers.yaml: is empty; write [] if the pool shall have no servers"),
        ("endpoints:\n", "servers.yaml:1: endpoints: is empty; write [] if the pool shall have no servers"),
        ("{}", "servers.yaml:1: endpoints: is not set; write [] if the pool shall have no servers"),
        ("endpoints: 10.0.0.1:8000", 'servers.yaml:1: endpoints: is not a list; start each item with "- "'),
        ("endpointz: []", "servers.yaml:1: endpointz: unknown setting; list the servers under `endpoints`"),
        ("10.0.0.1:8000", "servers.yaml:1: holds a single value; list the servers as - host:port"),
        ("- 10.0.0.1:8000\n- 10.0.0.2", 'servers.yaml:2: [1]: "10.0.0.2" has no port; write host:port'),
        (
            "- targets:\n  - 10.0.0.1:8000\n  - 10.0.0.2\n",
            'servers.yaml:3: [0].targets[1]: "10.0.0.2" has no port; write host:port',
        ),
        (
            "- address: 10.0.0.1:8000\n  wieght: 2\n",
            'servers.yaml:2: [0].wieght: unknown setting; did you mean "weight"?',
        ),
        (
            "- address: 10.0.0.1:8000\n  weight: 0\n",
            "servers.yaml:2: [0].weight: 0 is out of range; it must be greater than 0",
        ),
        ("- weight: 2\n", "servers.yaml:1: [0].address: is not set; add it"),
        ("- address: 1.2.3.4:1\n  address: 1.2.3.4:2\n", "servers.yaml:2: [0].address: stands here again, first on"),
        (
            "- '[fe80::1%eth0]:8000'",
            'servers.yaml:1: [0]: "[fe80::1%eth0]:8000": an IPv6 zone id cannot be routed to by Envoy',
        ),
        ('["10.0.0.1:8000", "10.0', "servers.yaml:1: is not YAML: found unexpected end of stream"),
        (b"- 10.0.0.1:8000\n- \xff\n", "servers.yaml:2: is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_line_field_and_cure(text: str | bytes, said: str) -> None:
    entries, problems = read(text if isinstance(text, bytes) else text.encode(), "servers.yaml")
    assert entries is None
    assert str(problems[0]).startswith(said)
    assert len(problems) == 1


def test_such_a_file_can_be_checked_beforehand(tmp_path: Path) -> None:
    app = Typer()
    app.command()(check)
    path = tmp_path / "servers.yaml"
    path.write_text("- 10.0.0.1\n")
    good = tmp_path / "good.json"
    good.write_text('["10.0.0.1:8000"]')
    found = CliRunner().invoke(app, ["--servers", str(path), "--servers", str(good)])
    said, count = found.output.splitlines()
    assert said == f'error: {path}:1: [0]: "10.0.0.1" has no port; write host:port [endpoint-address]'
    assert (count, found.exit_code) == ("2 files: 1 error, 0 warnings", 1)
    assert CliRunner().invoke(app, ["--servers", str(good)]).exit_code == 0
    gone = CliRunner().invoke(app, ["--servers", str(tmp_path / "gone.yaml")])
    assert (gone.exit_code, "there is no such file" in gone.output) == (2, True)


async def test_a_pool_may_be_discovered_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text("- 10.0.0.1:8000\n")
    source = source_of(PoolSettings(discovery=DiscoverySettings(file=FileDiscoverySettings(path=str(path)))))
    assert isinstance(source, FileSource)
    async with asyncio.timeout(10), aclosing(source.watch()) as sets:
        assert [str(endpoint.address) for endpoint in await anext(sets)] == ["10.0.0.1:8000"]


def renamed(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def by_its_directory(path: Path, text: str) -> None:
    """As the kubelet does with a ConfigMap: path is a link to ..data/path, and ..data a link that is replaced."""
    directory = path.parent
    version = directory / f"..{time.monotonic_ns()}"
    version.mkdir()
    (version / path.name).write_text(text)
    (directory / "..data_tmp").symlink_to(version.name)
    (directory / "..data_tmp").rename(directory / "..data")
    if not path.is_symlink():
        path.symlink_to(Path("..data") / path.name)


def with_the_old_time(path: Path, text: str) -> None:
    """Same size, same time stamp: only the content tells."""
    path.write_text(text)
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("write", [renamed, in_place, by_its_directory, with_the_old_time])
async def test_a_change_is_seen_however_the_file_is_replaced(
    write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    path = tmp_path / "servers.yaml"
    write(path, "- 10.0.0.1:8000\n")
    async with watching(path) as seen:
        await seen.until("10.0.0.1:8000")
        write(path, "- 10.0.0.2:8000\n")
        await seen.until("10.0.0.2:8000")
        assert len(seen.sets) == 2


async def test_a_file_that_is_being_written_is_not_believed_half(tmp_path: Path) -> None:
    """Each half is a list, and the port of the second a number: only the next look tells."""
    path = tmp_path / "servers.yaml"
    path.write_text("- 10.0.0.1:8000\n- 10.0.0.2:8000\n")
    looks = 0

    async def write_between(nap_s: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:  # the first list has been taken
            path.write_text("- 10.0.0.3:8000\n- 10.0.0.4:80")
        elif looks == 3:  # between the two looks at the new one
            assert nap_s == watched.SETTLE_S
            path.write_text("- 10.0.0.3:8000\n- 10.0.0.4:8000\n")
        await soon(nap_s)

    seen = Seen(path)
    seen.source = FileSource(PoolSettings(), FileDiscoverySettings(path=str(path)), sleep=write_between)
    async with asyncio.timeout(10), aclosing(seen.source.watch()) as sets:
        assert [str(endpoint.address) for endpoint in await anext(sets)] == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert [str(endpoint.address) for endpoint in await anext(sets)] == ["10.0.0.3:8000", "10.0.0.4:8000"]


async def test_a_file_that_never_settles_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    count = 0

    async def write(nap_s: float) -> None:
        nonlocal count
        count += 1
        path.write_text(f"- 10.0.0.1:8000 # {count}\n")
        await soon(nap_s)

    await write(0)
    source = FileSource(PoolSettings(), FileDiscoverySettings(path=str(path)), sleep=write)
    async with asyncio.timeout(10), aclosing(source.watch()) as sets:
        assert [str(endpoint.address) for endpoint in await anext(sets)] == ["10.0.0.1:8000"]


def broken(path: Path) -> None:
    path.write_text("- address: 10.0.0.9:8000\n  wieght: 1\n")


def truncated(path: Path) -> None:
    path.write_text("")


def missing(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(watched.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (broken, ':2: [0].wieght: unknown setting; did you mean "weight"?'),
        (truncated, ": is empty; write [] if the pool shall have no servers"),
        (missing, ": there is no such file"),
        (a_directory, ": is a directory"),
        (too_large, ": is larger than 16 MiB"),
    ],
)
async def test_a_file_gone_bad_keeps_its_servers_and_says_so_once(
    spoil: Callable[[Path], None], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc.discovery.file")
    path = tmp_path / "servers.yaml"
    path.write_text("- 10.0.0.1:8000\n- 10.0.0.2:8000\n")
    async with watching(path) as seen:
        await seen.until("10.0.0.1:8000", "10.0.0.2:8000")
        spoil(path)
        await seen.failing(said)
        assert list(seen.source.failing) == [str(path)]
        await asyncio.sleep(10 * STEP_S)
        assert len(seen.sets) == 1
        if path.is_dir():
            path.rmdir()
        path.write_text("- 10.0.0.3:8000\n")
        await seen.until("10.0.0.3:8000")
        assert seen.source.failing == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}{said} (keeping its last list of 2)",
        f"{path} is good again",
    ]


async def test_of_many_mistakes_the_first_are_told(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text("".join(f"- 10.0.0.{n}\n" for n in range(1, 11)))
    async with watching(path) as seen:
        await seen.failing("; and 7 more")
        assert seen.source.failing[str(path)].count("has no port") == 3


async def test_before_the_file_is_there_nothing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    async with watching(path) as seen:
        await seen.failing("there is no such file")
        assert seen.sets == []
        path.write_text("[]")
        await seen.until()


async def test_a_fault_of_our_own_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text("[]")

    def fault(raw: bytes, name: str) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("extproc.config.endpoints_file.read", fault)
    source = FileSource(PoolSettings(), FileDiscoverySettings(path=str(path)), sleep=soon)
    async with asyncio.timeout(10), aclosing(source.watch()) as sets:
        with pytest.raises(KeyError, match="a bug"):
            await anext(sets)


MANUAL = (Path(__file__).parents[2] / "docs" / "discovery.md").read_text()


def test_the_file_in_the_manual_can_be_read() -> None:
    (text,) = re.findall(r"<!-- servers.yaml -->\n```yaml\n(.*?)```", MANUAL, re.DOTALL)
    entries, problems = read(text.encode(), "servers.yaml")
    assert problems == ()
    assert entries is not None
    assert [(entry.address, entry.weight) for entry in entries] == [
        ("10.0.0.1:8000", 1.0),
        ("[fd00::10]:8000", 1.0),
        ("10.0.0.2:8000", 2.0),
        ("vllm-3.example:8000", 1.0),
        ("10.0.0.4:8000", 0.5),
        ("10.0.0.5:8000", 0.5),
    ]


def test_the_settings_in_the_manual_can_be_loaded() -> None:
    examples = re.findall(r"```yaml\n(pools:.*?)```", MANUAL, re.DOTALL)
    assert len(examples) == 2
    assert [load(text).problems for text in examples] == [(), ()]
