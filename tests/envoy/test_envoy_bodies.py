"""Does every body reach a server as it came, picked once, whatever it holds?"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import Stack, digest

LIMIT = 16 * 1024 * 1024
SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)


def _chat(content: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


def _zstd(data: bytes) -> bytes:
    """A zstd frame of one raw block (RFC 8878): magic, single segment with one size byte, block header, data."""
    assert len(data) < 256
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + block + data


def _bomb(expanded_mebibytes: int) -> bytes:
    """A gzip of zeros, about a thousandth of what it expands to: one member of 8 MiB, again and again."""
    return gzip.compress(bytes(8 * 1024 * 1024)) * (expanded_mebibytes // 8)


JSON = "application/json"
BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "plain": (_chat("hello"), {"content-type": JSON}),
    "empty": (b"", {"content-type": JSON}),
    "not JSON": (b"hello, this is no JSON \x00\x01", {"content-type": JSON}),
    "truncated": (b'{"model": "m"', {"content-type": JSON}),
    "not UTF-8": (b'{"model": "m", "prompt": "\xff\xfe\xe9"}', {"content-type": JSON}),
    "byte order mark": (b"\xef\xbb\xbf" + _chat("hello"), {"content-type": JSON}),
    "lone surrogates": (b'{"model": "m", "prompt": "\\ud800 \\udfff"}', {"content-type": JSON}),
    "5,000 digits": (b'{"model": "m", "max_tokens": ' + b"9" * 5000 + b"}", {"content-type": JSON}),
    "nested 100,000 deep": (
        b'{"model": "m", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        {"content-type": JSON},
    ),
    "open 100,000 deep": (b"[" * 100_000, {"content-type": JSON}),
    "duplicate keys": (b'{"model": "a", "model": "b", "prompt": "x", "prompt": 1}', {"content-type": JSON}),
    "NaN": (b'{"model": "m", "temperature": NaN, "top_p": Infinity}', {"content-type": JSON}),
    "array at the top": (b'[{"model": "m"}, 1, null]', {"content-type": JSON}),
    "string at the top": (b'"model"', {"content-type": JSON}),
    "15 MB": (_chat("x" * 15_000_000), {"content-type": JSON}),
    "gzip": (gzip.compress(_chat("hello" * 1000)), {"content-type": JSON, "content-encoding": "gzip"}),
    "cut gzip": (gzip.compress(_chat("hello" * 1000))[:-9], {"content-type": JSON, "content-encoding": "gzip"}),
    "gzip bomb": (_bomb(1024), {"content-type": JSON, "content-encoding": "gzip"}),
    "zstd": (_zstd(_chat("hello")), {"content-type": JSON, "content-encoding": "zstd"}),
    "gzip, zstd": (_zstd(gzip.compress(_chat("hello"))), {"content-type": JSON, "content-encoding": "gzip, zstd"}),
    "multipart": (
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n--b--\r\n',
        {"content-type": "multipart/form-data; boundary=b"},
    ),
    "no content type": (_chat("hello"), {}),
}


@SHAPES
async def test_every_body_is_routed_once_and_arrives_to_the_byte(start: Any, shape: str) -> None:
    """Cases a03, a04, a10, a24. A compressed body is never inflated: 1 GiB of zeros costs what its 1 MB costs.

    An empty body in shape A does not call the service (Envoy sends no body message), so it is routed without a pick.
    """

    def patient(config: Any) -> None:
        # A busy machine takes its time at 15 MB.
        envoy_config.http_filter(config, "ext_proc")["message_timeout"] = "20s"

    stack = await start(shape=shape, change=patient)
    wrong = []
    for name, (body, headers) in BODIES.items():
        before = await stack.picks()
        answer = await stack.request(body=body, headers=headers or {"accept": "*/*"})
        picked = await stack.picks() - before
        seen = stack.by_port(answer.port).seen[-1] if answer.status == 200 else None
        expected_picks = 0 if shape == "A" and not body else 1
        if seen is None or seen.sha256 != digest(body) or picked != expected_picks:
            wrong.append((name, answer.status, answer.body[:200], picked))
        elif seen.headers.get("content-encoding") != headers.get("content-encoding"):
            wrong.append((name, seen.headers))
    assert not wrong
    assert len(stack.seen()) == len(BODIES)
    await stack.nothing_in_flight()
    assert (await stack.status())["streams"]["errors"] == 0


@SHAPES
async def test_a_body_sent_in_chunks_without_a_length_is_routed_whole(start: Any, shape: str) -> None:
    """Also in pieces of odd sizes, cut inside a character."""
    stack = await start(shape=shape)
    body = _chat("grüße 🙂 " * 20_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start_ in range(0, len(body), 4099):
            yield body[start_ : start_ + 4099]

    answer = await stack.request(body=pieces(), headers={"content-type": JSON})
    assert (answer.status, answer.json()["sha256"]) == (200, digest(body))
    assert await stack.picks() == 1
    await stack.nothing_in_flight()


def _sized(size: int) -> bytes:
    body = _chat("")
    return _chat("x" * (size - len(body)))


async def _is_openai_413(answer: Any) -> None:
    assert answer.status == 413
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "larger" in error["message"]


@SHAPES
async def test_all_sizes_up_to_the_limit_pass_and_the_next_gets_413(start: Any, shape: str) -> None:
    """Cases a01, a02, g01: no hidden limit at 32 KiB, 1 MiB or 4 MiB; a byte over the stated one is an OpenAI error."""
    stack = await start(shape=shape)
    for size in (32768, 32769, 1024 * 1024 + 1, 4 * 1024 * 1024 - 1, 4 * 1024 * 1024 + 1, LIMIT):
        body = _sized(size)
        assert len(body) == size
        answer = await stack.request(body=body)
        assert (answer.status, answer.json()["sha256"]) == (200, digest(body)), size
    reached = len(stack.seen())
    await _is_openai_413(await stack.request(body=_sized(LIMIT + 1)))
    await _is_openai_413(await stack.request(body=_sized(LIMIT + 4 * 1024 * 1024)))
    assert len(stack.seen()) == reached, "a refused body must not reach a server"
    assert (await stack.request()).status == 200
    await stack.nothing_in_flight()


@SHAPES
async def test_expect_100_continue_changes_nothing(start: Any, shape: str) -> None:
    """Case a27: the same 200 under the limit and the same single 413 over it, with and without `Expect`."""
    stack: Stack = await start(shape=shape)
    for size, wanted in ((2_000_000, b"200"), (LIMIT + 1, b"413")):
        for expect in (b"", b"expect: 100-continue\r\n"):
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            head += b"connection: close\r\ncontent-length: %d\r\n%s\r\n" % (size, expect)
            received = await stack.raw(head + _sized(size))
            finals = [
                line for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ") and b" 100 " not in line
            ]
            assert [line.split()[1] for line in finals] == [wanted], (size, expect, received[:400])
            if wanted == b"413":
                assert b'"invalid_request_error"' in received
    await stack.nothing_in_flight()
