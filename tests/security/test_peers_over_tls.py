"""Processes of one service that ask each other for their arrivals: over TLS, where their admin ports have it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extproc.admin.guard import Guard
from extproc.admin.port import guarded, open_port
from extproc.config.settings import AdminSettings, TlsSettings
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.peers import PATH, PeerCounts, PeerPoller
from tests.security.conftest import Issued
from tests.support.waiting import eventually


def settings(issued: Issued, folder: Path, trusted: Issued | None = None) -> AdminSettings:
    """Of each of the processes; `trusted`: whose CA they trust."""
    (folder / "token").write_text("t0ken")
    tls = TlsSettings(
        cert_file=str(issued.service.cert), key_file=str(issued.service.key), client_ca_file=str(issued.ca.cert)
    )
    ca = str((trusted or issued).ca.cert)
    token = str(folder / "token")
    return AdminSettings(listen="127.0.0.1:0", tls=tls, token_file=token, protect="all", peer_ca_file=ca)


@asynccontextmanager
async def peer(of: AdminSettings) -> AsyncIterator[Endpoint]:
    """Another process's admin port."""

    async def offered(_request: web.Request) -> web.Response:
        return web.json_response({"id": "other", "pools": {"vllm": 7}})

    app = web.Application(middlewares=[guarded(Guard.of(of, {}), lambda _: False)])
    app.router.add_get(PATH, offered)
    opened = await open_port(of, app)
    try:
        yield Endpoint(Address.parse(opened.address))
    finally:
        await opened.close()


class Heard:
    def __init__(self) -> None:
        self.counts: list[PeerCounts] = []
        self.reasons: list[str] = []

    def on_counts(self, _endpoint: Endpoint, counts: PeerCounts) -> None:
        self.counts.append(counts)

    def on_no_counts(self, _endpoint: Endpoint, reason: str) -> None:
        self.reasons.append(reason)


@asynccontextmanager
async def asking(own: AdminSettings, of: Endpoint) -> AsyncIterator[Heard]:
    heard = Heard()
    poller = PeerPoller(heard, 0.05, time.monotonic, own=own)
    poller.set_endpoints([of])
    task = asyncio.create_task(poller.run())
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_they_show_each_other_their_certificates_and_the_token(first: Issued, tmp_path: Path) -> None:
    own = settings(first, tmp_path)
    async with peer(own) as other, asking(own, other) as heard:
        await eventually(lambda: heard.counts, "it answers")
    assert heard.counts[0] == PeerCounts("other", {"vllm": 7.0})
    assert not heard.reasons


WITHOUT: dict[str, tuple[Callable[[AdminSettings], dict[str, Any]], str]] = {
    "TLS": (lambda own: {"tls": None}, ""),
    "the token": (lambda own: {"token_file": None}, "status 401"),
}


@pytest.mark.parametrize("what", WITHOUT)
async def test_without_what_is_asked_for_there_is_no_answer(what: str, first: Issued, tmp_path: Path) -> None:
    own = settings(first, tmp_path)
    change, words = WITHOUT[what]
    async with peer(own) as other, asking(own.model_copy(update=change(own)), other) as heard:
        await eventually(lambda: heard.reasons, "it is refused")
    assert not heard.counts
    assert words in heard.reasons[0]


async def test_a_process_that_is_not_one_of_ours_is_not_believed(first: Issued, second: Issued, tmp_path: Path) -> None:
    own = settings(first, tmp_path, trusted=second)
    async with peer(settings(first, tmp_path)) as other, asking(own, other) as heard:
        await eventually(lambda: heard.reasons, "it is refused")
    assert not heard.counts
    assert "CERTIFICATE_VERIFY_FAILED" in heard.reasons[0]


def test_a_ca_that_cannot_be_used_is_named(first: Issued, tmp_path: Path) -> None:
    own = settings(first, tmp_path).model_copy(update={"peer_ca_file": "absent.pem"})
    with pytest.raises(ValueError, match=r'admin\.peer_ca_file: cannot use "absent\.pem"'):
        PeerPoller(Heard(), 1.0, time.monotonic, own=own)
