"""Commands that speak with an admin port behind TLS and a token: `extproc drain`, `undrain`, `explain`, `scale`."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.admin import http
from extproc.admin.drains import DrainDesk
from extproc.admin.guard import Guard
from extproc.admin.port import open_port
from extproc.calibrate.errors import CalibrationError
from extproc.cli import _admin, calibrate
from extproc.cli._admin import Admin, AwayError, RefusedError, Rights
from extproc.config.settings import AdminSettings, TlsSettings
from extproc.pool.deadline import Bounds
from tests.security.conftest import Issued
from tests.support.fleet import sampled_router

DRAINS = "/v1/drains"


@asynccontextmanager
async def port(settings: AdminSettings, environment: dict[str, str] | None = None) -> AsyncIterator[str]:
    """A real admin port; its host:port."""
    fleet = sampled_router(2)
    desk = DrainDesk(fleet, Bounds(100, 0.01, 1.0, 1.0, 1.2), clock=lambda: 1.0)
    answers = http.Answers(ready=lambda: True, status=dict, explain=lambda _: {}, decisions=lambda _: [], drains=desk)
    guard = Guard.of(settings, environment or {})
    opened = await open_port(
        settings, http.application(CollectorRegistry(), answers, max_body_bytes=10_000, guard=guard)
    )
    try:
        yield opened.address
    finally:
        await opened.close()


def settings(issued: Issued | None = None, *, mutual: bool = False, **more: Any) -> AdminSettings:
    tls = None
    if issued is not None:
        ca = str(issued.ca.cert) if mutual else None
        tls = TlsSettings(cert_file=str(issued.service.cert), key_file=str(issued.service.key), client_ca_file=ca)
    return AdminSettings(listen="127.0.0.1:0", tls=tls, **more)


async def asked(make: Callable[[], Admin], method: str = "GET", path: str = DRAINS) -> Any:
    """What a command gets; it waits, so it runs in a thread."""
    return await asyncio.to_thread(lambda: make().ask(method, path, {}))


async def test_with_the_token_and_the_ca_it_is_answered(first: Issued, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    rights = Rights(token_file=tmp_path / "token", ca=first.ca.cert)
    one = settings(first, token_file=str(tmp_path / "token"), protect="all")
    async with port(one) as address:
        url = f"https://localhost:{address.rpartition(':')[2]}"
        assert await asked(lambda: Admin(url, rights)) == []
        drain = "/v1/endpoints/10.0.0.1:8000/drain"
        assert (await asked(lambda: Admin(url, rights), "POST", drain))["phase"] == "draining"
        with pytest.raises(RefusedError, match=r"needs the admin token.*--token-file"):
            await asked(lambda: Admin(url, Rights(ca=first.ca.cert)), "DELETE", drain)
        with pytest.raises(AwayError, match=r"certificate of https://.* is not trusted .*--ca FILE"):
            await asked(lambda: Admin(url, Rights(token_file=tmp_path / "token")))
        with pytest.raises(AwayError, match=r"no service at http://|does it speak TLS\? then write https://"):
            await asked(lambda: Admin(address, rights))


async def test_all_of_it_may_come_from_the_environment(
    first: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with port(settings(first, mutual=True, protect="all"), {"EXTPROC_ADMIN_TOKEN": "t0ken"}) as address:
        url = f"https://{address}"
        with pytest.raises((AwayError, RefusedError)):
            await asked(lambda: Admin(url))
        monkeypatch.setenv("EXTPROC_ADMIN_CA", str(first.ca.cert))
        with pytest.raises(RefusedError, match=r"a client certificate of admin\.tls\.client_ca_file"):
            await asked(lambda: Admin(url))
        monkeypatch.setenv("EXTPROC_ADMIN_CERT", str(first.client.cert))
        monkeypatch.setenv("EXTPROC_ADMIN_KEY", str(first.client.key))
        with pytest.raises(RefusedError, match="needs the admin token"):
            await asked(lambda: Admin(url))
        monkeypatch.setenv("EXTPROC_ADMIN_TOKEN", "t0ken")
        assert await asked(lambda: Admin(url)) == []


async def test_a_certificate_of_another_authority_does_not_come_in(first: Issued, second: Issued) -> None:
    async with port(settings(first, mutual=True)) as address:
        rights = Rights(ca=first.ca.cert, cert=second.client.cert, key=second.client.key)
        with pytest.raises(AwayError):
            await asked(lambda: Admin(f"https://{address}", rights), path="/healthz")


async def test_probes_need_no_certificate(first: Issued) -> None:
    """Those of Kubernetes have none, and do not verify ours."""
    async with port(settings(first, mutual=True)) as address:
        host, _, number = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number), ssl=ssl._create_unverified_context())
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: 10.0.0.9:9003\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_the_token_does_not_go_along_with_a_redirect(tmp_path: Path) -> None:
    """Whoever answers in the place of the service could else have it sent anywhere."""
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=307, headers={"Location": f"http://{request.host}/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "token").write_text("t0ken")
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        for method in ("GET", "POST"):
            with pytest.raises(AwayError, match="status 307: that is not this service's admin port"):
                await asked(lambda: Admin(url, Rights(tmp_path / "token")), method)
    finally:
        await runner.cleanup()
    assert seen == ["Bearer t0ken"] * 2


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        (Rights(token_file=Path("absent")), "--token-file: cannot read absent: No such file"),
        (Rights(token_file=Path("empty")), "must hold one token"),
        (Rights(ca=Path("absent")), "absent: No such file or directory; name a PEM file"),
        (Rights(ca=Path("empty")), "empty: .*name a PEM file"),
        (Rights(cert=Path("absent")), "absent: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_mistake_of_the_command_line(
    rights: Rights, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    with pytest.raises(typer.BadParameter, match=words):
        Admin("https://127.0.0.1:1", rights)


def test_a_command_that_is_called_is_given_the_same_rights() -> None:
    rights = Rights(Path("t"), Path("ca"), Path("c"), Path("k"))
    assert rights.environment() == dict(zip(_admin._VARIABLES, ("t", "ca", "c", "k"), strict=True))
    assert Rights().environment() == {}


@pytest.mark.parametrize("name", ["drain", "undrain", "explain", "scale", "top"])
def test_every_command_that_asks_the_admin_port_takes_them(name: str) -> None:
    from typer.main import get_command

    from extproc.cli.main import app

    group: Any = get_command(app)
    options = {option for parameter in group.commands[name].params for option in parameter.opts}
    assert {"--admin", "--token-file", "--ca", "--cert", "--key"} <= options


async def test_a_load_test_asks_the_service_with_the_token_of_the_environment(
    first: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`extproc calibrate --from-service`: of a port that shows nobody anything."""
    monkeypatch.setenv("EXTPROC_ADMIN_CA", str(first.ca.cert))
    async with port(settings(first, protect="all"), {"EXTPROC_ADMIN_TOKEN": "t0ken"}) as address:
        ask = functools.partial(calibrate._ask_fleet, f"https://{address}", None, None, None)
        with pytest.raises(CalibrationError, match="refuses: this needs the admin token"):
            await asyncio.to_thread(ask)
        monkeypatch.setenv("EXTPROC_ADMIN_TOKEN", "t0ken")
        with pytest.raises(CalibrationError, match="is not this service's admin port"):  # it has no pools
            await asyncio.to_thread(ask)
