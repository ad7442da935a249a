"""One scrape against servers that behave in every way there is."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Address, Endpoint
from extproc.pool.sample import LoadSample
from extproc.telemetry.fetch import FailureKind, ScrapeFailure, new_session, tls_context
from extproc.telemetry.scrape import scrape

from .conftest import PAGE, TLS, Serve, hangs, http, sends

Scrape = Callable[..., Any]


@pytest.fixture
async def ask() -> AsyncIterator[Scrape]:
    sessions: list[aiohttp.ClientSession] = []

    async def once(endpoint: Endpoint, **settings: Any) -> LoadSample | ScrapeFailure:
        options = ScrapeSettings(**settings)
        sessions.append(new_session(options, tls_context(options)))
        return await scrape(sessions[-1], endpoint, options, itertools.count(100.0).__next__)

    yield once
    for session in sessions:
        await session.close()


async def test_a_page_becomes_a_sample_with_the_time_it_was_asked_for(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)))
    sample = await ask(server.endpoint)
    assert (sample.running, sample.kv_usage_ratio, sample.taken_at_s, sample.truncated) == (2.0, 0.5, 100.0, False)
    head = server.requests[0].decode()
    assert head.startswith("GET /metrics HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}\r\n" in head


async def test_a_chunked_page_is_read(serve: Serve, ask: Scrape) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (PAGE[:5], PAGE[5:60], PAGE[60:])) + b"0\r\n\r\n"
    server = await serve(sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
    assert (await ask(server.endpoint)).running == 2.0


async def test_a_page_that_ends_with_the_connection_is_read(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, then_close=True))
    assert (await ask(server.endpoint)).running == 2.0


async def test_a_gzipped_page_is_read_though_none_was_asked_for(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(gzip.compress(PAGE), headers="Content-Encoding: gzip\r\n")))
    assert (await ask(server.endpoint)).running == 2.0
    assert b"Accept-Encoding: identity\r\n" in server.requests[0]


async def test_the_size_cap_counts_what_a_gzipped_page_unpacks_to(serve: Serve, ask: Scrape) -> None:
    """case d08"""
    packed = gzip.compress(PAGE + b"# RUNNING ON\n" * 2_000_000)
    server = await serve(sends(http(packed, headers="Content-Encoding: gzip\r\n")))
    sample = await ask(server.endpoint, max_bytes=100_000)
    assert (sample.running, sample.truncated) == (2.0, True)


@pytest.mark.parametrize(
    "data",
    [
        http(b"\x1f\x8bnot gzip", headers="Content-Encoding: gzip\r\n"),
        http(PAGE, headers="Content-Encoding: br\r\n"),
        b"\x00\x01\x02garbage\r\n\r\n",
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nno size\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"",
        http(PAGE, length=len(PAGE) + 10),
    ],
)
async def test_what_is_no_whole_http_answer_is_broken(data: bytes, serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(data, then_close=True))
    failure = await ask(server.endpoint)
    assert isinstance(failure, ScrapeFailure)
    assert failure.kind is FailureKind.BROKEN
    assert failure.at_s == 100.0


async def test_a_connection_reset_amid_the_page_is_broken_not_half_a_page(serve: Serve, ask: Scrape) -> None:
    async def reset(writer: asyncio.StreamWriter) -> None:
        writer.write(http(PAGE, length=10_000))
        await writer.drain()
        linger = struct.pack("ii", 1, 0)  # close with RST
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    server = await serve(reset)
    failure = await ask(server.endpoint)
    assert failure.kind is FailureKind.BROKEN


@pytest.mark.parametrize(
    "body", [b"", b"<html><body>Login</body></html>", b"process_cpu_seconds_total 1\n", b"sglang:num_running_reqs 1\n"]
)
async def test_a_200_page_without_vllm_series_is_an_unusable_sample(body: bytes, serve: Serve, ask: Scrape) -> None:
    """case d07"""
    server = await serve(sends(http(body)))
    sample = await ask(server.endpoint)
    assert isinstance(sample, LoadSample)
    assert not sample.usable


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "500 Oops", "503 Busy", "204 No Content"])
async def test_every_status_but_200_is_a_failure_that_names_it(status: str, serve: Serve, ask: Scrape) -> None:
    """case d07"""
    server = await serve(sends(http(b"", status=status)))
    failure = await ask(server.endpoint)
    assert (failure.kind, failure.status) == (FailureKind.HTTP_STATUS, int(status[:3]))
    assert status[:3] in failure.detail


async def test_a_redirect_is_not_followed(serve: Serve, ask: Scrape) -> None:
    other = await serve(sends(http(PAGE)))
    where = f"Location: http://127.0.0.1:{other.port}/metrics\r\n"
    server = await serve(sends(http(b"", status="302 Found", headers=where)))
    failure = await ask(server.endpoint)
    assert (failure.kind, failure.status, other.requests) == (FailureKind.HTTP_STATUS, 302, [])
    assert "redirects are not followed" in failure.detail


async def test_a_closed_port_is_refused(serve: Serve, ask: Scrape) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else can take the port
        bound.bind(("127.0.0.1", 0))
        failure = await ask(Endpoint(Address.of("127.0.0.1", bound.getsockname()[1])))
    assert failure.kind is FailureKind.REFUSED


async def test_an_address_without_route_is_unreachable(ask: Scrape) -> None:
    failure = await ask(Endpoint(Address.of("255.255.255.255", 9)))
    assert failure.kind is FailureKind.UNREACHABLE


async def test_a_server_that_accepts_and_says_nothing_is_a_timeout(serve: Serve, ask: Scrape) -> None:
    """case d09"""
    server = await serve(hangs)
    failure = await ask(server.endpoint, timeout_s=0.1)
    assert (failure.kind, failure.detail.endswith("no whole page within 0.1 s")) == (FailureKind.TIMEOUT, True)


async def test_a_page_that_drips_meets_the_total_deadline(serve: Serve, ask: Scrape) -> None:
    """case d09"""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"", length=10_000))
        while True:
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.02)

    server = await serve(drip)
    failure = await ask(server.endpoint, timeout_s=0.2)
    assert failure.kind is FailureKind.TIMEOUT


async def test_of_a_huge_page_the_first_bytes_are_used_and_the_rest_never_fetched(serve: Serve, ask: Scrape) -> None:
    """case d08"""
    sent = 0

    async def huge(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(http(PAGE + b"# NEXT\n", length=100_000_000))
        filler = b'x{label="y"} 1\n' * 4000
        while sent < 100_000_000 and not writer.is_closing():
            writer.write(filler)
            sent += len(filler)
            await writer.drain()

    server = await serve(huge)
    sample = await ask(server.endpoint, max_bytes=300_000)
    assert (sample.running, sample.truncated) == (2.0, True)
    assert sent < 50_000_000


async def test_a_page_as_long_as_the_cap_is_whole(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)))
    assert not (await ask(server.endpoint, max_bytes=len(PAGE))).truncated
    assert (await ask(server.endpoint, max_bytes=len(PAGE) - 1)).truncated


async def test_wanted_lines_after_a_7_mb_label_are_found_where_the_cap_allows(serve: Serve, ask: Scrape) -> None:
    """case d08"""
    page = b'vllm:config{all="' + b"y" * 7_000_000 + b'"} 1\n' + PAGE
    server = await serve(sends(http(page)))
    sample = await ask(server.endpoint, max_bytes=8_000_000)
    assert (sample.running, sample.truncated) == (2.0, False)
    capped = await ask(server.endpoint)
    assert (capped.usable, capped.truncated) == (False, True)


async def test_the_event_loop_gets_its_turns_while_a_big_page_is_read(serve: Serve, ask: Scrape) -> None:
    """case d08"""
    server = await serve(sends(http(b'vllm:num_requests_running{e="1"} 1\n' * 50_000)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    sample = await ask(server.endpoint)
    counting.cancel()
    assert sample.running is None or sample.running == 1.0
    assert turns > 100  # 1.8 MB in steps of 16 KiB


async def test_the_metrics_port_and_path_are_used(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)))
    endpoint = Endpoint(Address.of("127.0.0.1", 9), metrics_port=server.port)
    assert (await ask(endpoint, path="/v2/metrics?all=1")).running == 2.0
    assert server.requests[0].startswith(b"GET /v2/metrics?all=1 HTTP/1.1\r\n")


async def test_an_ipv6_endpoint_is_asked(serve: Serve, ask: Scrape) -> None:
    try:
        server = await serve(sends(http(PAGE)), host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert (await ask(server.endpoint)).running == 2.0
    assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0]


async def test_proxy_variables_do_not_divert_scrapes(
    serve: Serve, ask: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case d13"""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    plain, tls = await serve(sends(http(PAGE))), await serve(sends(http(PAGE)), tls=True)
    assert (await ask(plain.endpoint)).running == 2.0
    assert (await ask(tls.endpoint, scheme="https", ca_file=str(TLS / "ca.pem"))).running == 2.0


async def test_tls_with_the_right_ca_is_read(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)), tls=True)
    assert (await ask(server.endpoint, scheme="https", ca_file=str(TLS / "ca.pem"))).running == 2.0


@pytest.mark.parametrize("ca_file", [str(TLS / "other-ca.pem"), None])
async def test_tls_with_the_wrong_ca_is_a_tls_failure(ca_file: str | None, serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)), tls=True)
    failure = await ask(server.endpoint, scheme="https", ca_file=ca_file)
    assert failure.kind is FailureKind.TLS
    assert server.requests == []


async def test_verify_false_accepts_any_certificate(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)), tls=True)
    settings = {"scheme": "https", "ca_file": str(TLS / "other-ca.pem"), "verify": False}
    assert (await ask(server.endpoint, **settings)).running == 2.0


async def test_tls_to_a_plaintext_port_is_a_tls_failure(serve: Serve, ask: Scrape) -> None:
    server = await serve(sends(http(PAGE)))
    server.answer = sends(b"HTTP/1.1 400 Bad Request\r\n\r\n", then_close=True)
    failure = await ask(server.endpoint, scheme="https", timeout_s=0.3)
    assert failure.kind in (FailureKind.TLS, FailureKind.TIMEOUT)  # the fake waits for a request head that never ends


@pytest.mark.parametrize(("name", "good"), [("vllm.test", True), ("elsewhere.test", False)])
async def test_the_certificate_is_checked_against_the_name_an_endpoint_was_resolved_from(
    name: str, good: bool, serve: Serve, ask: Scrape
) -> None:
    server = await serve(sends(http(PAGE)), tls=True)
    endpoint = Endpoint(server.endpoint.address, hostname=name)
    result = await ask(endpoint, scheme="https", ca_file=str(TLS / "ca.pem"))
    assert isinstance(result, LoadSample) is good
    if good:
        assert f"Host: vllm.test:{server.port}\r\n".encode() in server.requests[0]
    else:
        assert result.kind is FailureKind.TLS


def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    for path in (empty, tmp_path / "absent.pem"):
        with pytest.raises(ValueError, match=r"scrape\.ca_file: cannot use .*\.pem"):
            tls_context(ScrapeSettings(scheme="https", ca_file=str(path)))


async def test_a_rotated_token_is_used_in_the_next_scrape(serve: Serve, ask: Scrape, tmp_path: Path) -> None:
    server, token = await serve(sends(http(PAGE))), tmp_path / "token"
    for secret in ("one", "two"):
        token.write_text(secret + "\n")
        assert (await ask(server.endpoint, bearer_token_file=str(token))).running == 2.0
    assert b"Authorization: Bearer one\r\n" in server.requests[0]
    assert b"Authorization: Bearer two\r\n" in server.requests[1]


@pytest.mark.parametrize("content", [None, "", "two words", "a\nX-Injected: b", "ü"])
async def test_a_token_that_cannot_be_used_is_a_failure_that_does_not_tell_it(
    content: str | None, serve: Serve, ask: Scrape, tmp_path: Path
) -> None:
    server, token = await serve(sends(http(PAGE))), tmp_path / "token"
    if content is not None:
        token.write_text(content)
    failure = await ask(server.endpoint, bearer_token_file=str(token))
    assert (failure.kind, server.requests) == (FailureKind.TOKEN, [])
    assert "bearer_token_file" in failure.detail
    assert not content or content not in failure.detail
