"""What can make the service connect somewhere, and whereto (SSRF)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extproc.config.settings import ScrapeSettings
from extproc.discovery.listed import ListedSource, of_family
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.fetch import ScrapeFailure, new_session
from extproc.telemetry.scrape import scrape
from tests.app.test_application import settings, started
from tests.discovery.test_listed import Zone, addresses, first, pool
from tests.discovery.test_srv import NAME, source
from tests.discovery.test_srv import first as first_of_srv
from tests.support.dns_server import dns_server
from tests.support.ext_proc_client import BUFFERED, DUPLEX, body, destination, headers
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually

METADATA_SERVICES = ["169.254.169.254", "fe80::a9fe:a9fe", "::ffff:169.254.169.254"]


@pytest.mark.parametrize("family", ["all", "auto", "v4_only", "v6_only", "v4_preferred"])
def test_no_name_resolves_to_a_link_local_address(family: str) -> None:
    assert not list(of_family(METADATA_SERVICES, family))


async def test_a_name_made_to_resolve_to_the_clouds_metadata_service_is_not_followed() -> None:
    zone = Zone(vllm_test=["10.0.0.1", *METADATA_SERVICES])
    assert addresses(await first(ListedSource(pool("vllm.test:8000"), zone))) == ["10.0.0.1:8000"]


async def test_nor_is_the_target_of_an_srv_record() -> None:
    async with dns_server() as zone:
        zone.set("a.test", "A", "10.0.0.1")
        zone.set("evil.test", "A", "169.254.169.254")
        zone.set(NAME, "SRV", "0 10 80 evil.test.", "0 10 8000 a.test.")
        found = await first_of_srv(source(zone))
    assert [str(endpoint.address) for endpoint in found] == ["10.0.0.1:8000"]


class Decoy:
    """Counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.address = ""

    def accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@asynccontextmanager
async def decoy() -> AsyncIterator[Decoy]:
    made = Decoy()
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as server:
        made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


async def test_no_word_of_a_client_makes_the_service_connect_or_name_a_host() -> None:
    """Addresses in every place where a client can put one: none is connected to, none is picked."""
    async with decoy() as other, MetricsServer().serve() as vllm:
        spoken = {
            ":method": "POST",
            ":path": f"http://{other.address}/v1/chat/completions",
            ":authority": other.address,
            "host": other.address,
            "x-forwarded-host": other.address,
            "x-gateway-destination-endpoint": other.address,
            "x-gateway-destination-endpoint-subset": other.address,
            "x-session-id": other.address,
            "referer": f"http://{other.address}/",
        }
        content = (
            f'{{"model": "http://{other.address}", "prompt": "x", "user": "{other.address}", "messages": [{{"role":'
        )
        content += (
            f' "user", "content": [{{"type": "image_url", "image_url": {{"url": "http://{other.address}/"}}}}]}}]}}'
        )
        async with started(settings({"vllm": [vllm.address]})) as running:
            await eventually(running.serving, "it is ready")
            for mode in (BUFFERED, DUPLEX):
                stream = running.client.stream()
                await stream.send(headers(mode, fields=spoken))
                if mode == BUFFERED:
                    await stream.read()
                reply = await stream.ask(body(content.encode()))
                assert destination(reply) == vllm.address
                stream.call.cancel()
        assert other.connections == 0


async def test_a_server_cannot_send_a_question_elsewhere() -> None:
    """A redirect of a metrics page, with the token that the page is asked with."""
    async with decoy() as other:

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                f"HTTP/1.1 302 Found\r\nLocation: http://{other.address}/\r\nContent-Length: 0\r\n\r\n".encode()
            )
            writer.close()

        async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            of = ScrapeSettings()
            async with new_session(of, None) as session:
                found = await scrape(session, Endpoint(Address.of("127.0.0.1", port)), of, lambda: 0.0)
        assert isinstance(found, ScrapeFailure)
        assert "redirects are not followed" in found.detail
        assert other.connections == 0
