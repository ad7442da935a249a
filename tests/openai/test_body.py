"""Bodies that are no plain JSON object, and those that would take too long to read."""

from __future__ import annotations

import base64
import codecs
import gzip
import json
import os
import zlib

import pytest

from extproc.openai import body as module
from extproc.openai.body import MAX_JSON_BYTES, read_object
from extproc.openai.media import elide
from extproc.request import NoPrompt
from tests.openai.asking import ask, chat, user

HELLO = chat(user("hello"))
HELLO_BYTES = json.dumps(HELLO).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"[1,2]",
        b'"hi"',
        b"null",
        b"\xff\xfe",
        b'{"a":1}garbage',
        b"{",
        b"a" * 8_000_000,
        b"plain text",
        b'{"a":"\xff"}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_routed_by_load(body: bytes) -> None:
    """case c13"""
    assert ask(body).no_prompt in (NoPrompt.UNPARSABLE, NoPrompt.EMPTY)


@pytest.mark.parametrize("encode", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-8"])
def test_every_encoding_that_the_server_reads_is_read(encode: str) -> None:
    """case c13: a byte order mark, UTF-16"""
    assert ask(json.dumps(HELLO).encode(encode)).prompt == ask(HELLO_BYTES).prompt != b""


def test_no_body_has_a_reason_of_its_own() -> None:
    """case c21"""
    assert ask(b"").no_prompt is NoPrompt.NO_BODY


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(HELLO_BYTES, mtime=0)),
        ("GZIP ", gzip.compress(HELLO_BYTES, mtime=0)),
        ("deflate", zlib.compress(HELLO_BYTES)),
        ("identity", HELLO_BYTES),
    ],
)
def test_a_compressed_body_is_understood(coding: str, body: bytes) -> None:
    """case a24"""
    found = ask(body, headers={"content-encoding": coding})
    assert found.prompt == ask(HELLO_BYTES).prompt
    assert found.model == "m"


def test_zstd_is_read_where_the_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """case a24"""
    zstandard = pytest.importorskip("zstandard")
    body = zstandard.ZstdCompressor().compress(HELLO_BYTES)
    assert ask(body, headers={"content-encoding": "zstd"}).model == "m"
    bomb = zstandard.ZstdCompressor().compress(b"{" + b" " * 100_000_000)
    assert ask(bomb, headers={"content-encoding": "zstd"}).no_prompt is NoPrompt.TOO_LARGE
    monkeypatch.setattr(module, "_zstandard", None)
    assert ask(body, headers={"content-encoding": "zstd"}).no_prompt is NoPrompt.ENCODED


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"\x0b\x02\x80hello\x03"),
        ("gzip, zstd", gzip.compress(HELLO_BYTES, mtime=0)),
        ("gzip", gzip.compress(HELLO_BYTES, mtime=0)[:-9]),
        ("gzip", HELLO_BYTES),
        ("gzip", gzip.compress(HELLO_BYTES, mtime=0) + gzip.compress(b"more", mtime=0)),
        ("deflate", b"\x00"),
        ("zstd", b"\x28\xb5\x2f\xfdbroken"),
    ],
)
def test_what_cannot_be_decoded_is_routed_by_load(coding: str, body: bytes) -> None:
    """case a24: stacked, cut, unknown or broken encodings"""
    assert ask(body, headers={"content-encoding": coding}).no_prompt is NoPrompt.ENCODED


def test_a_decompression_bomb_is_cut_off_at_the_bound() -> None:
    """case a24: 10 kB of gzip that expand to 10 MB"""
    bomb = gzip.compress(b'{"a":"' + b"a" * 10_000_000 + b'"}', mtime=0)
    assert ask(bomb, headers={"content-encoding": "gzip"}).no_prompt is NoPrompt.TOO_LARGE


@pytest.mark.parametrize("depth", [1_000, 20_000, 1_000_000])
def test_deep_nesting_is_routed_by_load(depth: int) -> None:
    """case c08"""
    body = b'{"model":"m","x":' + b"[" * depth + b"]" * depth + b"}"
    assert ask(body).no_prompt in (NoPrompt.UNPARSABLE, NoPrompt.TOO_LARGE, NoPrompt.EMPTY)


def test_a_tool_schema_of_a_thousand_levels_raises_nothing() -> None:
    """case c08"""
    schema = b'{"a":' * 990 + b"1" + b"}" * 990
    tools = b'[{"type":"function","function":{"name":"f","parameters":' + schema + b"}}]"
    found = ask(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":' + tools + b"}")
    assert found.model == "m"
    assert found.prompt.endswith(b"hi")


def test_duplicate_keys_count_as_for_the_server() -> None:
    """case c11: the last one wins, however it is spelt, and with the fallback parser as well"""
    for tail in (b'"prompt":"x"', b'"prompt":"\\ud83d"'):
        found = ask(
            b'{"model":"small","mod\\u0065l":"big","stream":true,"stream":false,' + tail + b"}", "/v1/completions"
        )
        assert (found.model, found.stream) == ("big", False)


@pytest.mark.parametrize(
    "content",
    [b'"cut \\ud83d"', b'"\\ude00 x"', b'"a \xed\xa0\xbd b"', b'"nul \\u0000"'],
)
def test_half_an_emoji_is_a_prompt_like_any_other(content: bytes) -> None:
    """case c07"""
    found = ask(b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}")
    assert found.no_prompt is None
    assert found.prompt


def test_half_an_emoji_in_a_name_can_be_written_out() -> None:
    """case c07: metric labels and log lines must not raise"""
    found = ask(b'{"model":"m\\ud83d","user":"\\ude00","prompt":"x"}', "/v1/completions")
    assert found.model is not None
    assert found.session_key is not None
    found.model.encode()
    found.session_key.encode()


@pytest.mark.parametrize("odd", [b"NaN", b"1e999", b"-Infinity", b"9007199254740993", b"9" * 400])
def test_numbers_that_only_the_standard_library_reads_are_no_obstacle(odd: bytes) -> None:
    """case c10"""
    assert ask(b'{"prompt":"x","seed":' + odd + b"}", "/v1/completions").prompt.endswith(b"x")


def test_bodies_beyond_the_bound_are_not_read() -> None:
    assert ask(chat(user("x" * MAX_JSON_BYTES))).no_prompt is NoPrompt.TOO_LARGE


@pytest.mark.parametrize("piece", [b"[],", b'{"a":1},', b"1,"])
def test_bodies_that_are_slow_to_build_are_not_read(piece: bytes) -> None:
    body = b'{"prompt":[' + piece * (1_900_000 // len(piece)) + b"0]}"
    assert ask(body, "/v1/completions").no_prompt is NoPrompt.TOO_LARGE


def data_url(size: int, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(os.urandom(size)).decode()}"


def image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_of_many_megabytes_have_a_prefix() -> None:
    """case c05: three images of 9 MiB in all"""
    urls = [data_url(2_300_000) for _ in range(3)]
    first = ask(chat(user([{"type": "text", "text": "look"}, *map(image, urls)])))
    again = ask(chat(user([{"type": "text", "text": "look"}, *map(image, urls)])))
    other = ask(chat(user([{"type": "text", "text": "look"}, *map(image, reversed(urls))])))
    assert first.no_prompt is None
    assert first.prompt == again.prompt != other.prompt
    assert len(first.prompt) < 500


def test_a_chat_that_grows_past_the_size_from_which_images_are_shortened_keeps_its_prefix() -> None:
    """case c05"""
    turns = [user([image(data_url(200_000))]), {"role": "assistant", "content": "a dog"}]
    short = ask(chat(*turns))
    turns += [user([image(data_url(700_000))]), {"role": "assistant", "content": "a cat"}]
    long = ask(chat(*turns))
    assert long.prompt.startswith(short.prompt)


def test_only_the_data_of_a_data_url_is_shortened() -> None:
    url = data_url(4000)
    text = json.dumps({"a": url, "b": "see ;base64,", "c": url[:200], "d": "x" + url}).encode()
    short = json.loads(elide(text))
    assert short["b"] == "see ;base64,"
    assert short["c"] == url[:200]
    assert short["d"] == "x" + url
    assert short["a"].startswith("data:image/png;base64,")
    assert len(short["a"]) < 80


def test_text_that_is_not_json_stays_so() -> None:
    for text in (b'"data:x;base64,' + b"A" * 2000, b"data:x;base64," + b"A" * 2000 + b'"'):
        assert isinstance(read_object(elide(text), {}), NoPrompt)


def test_a_byte_order_mark_alone_is_nothing() -> None:
    assert read_object(codecs.BOM_UTF8, {}) is NoPrompt.UNPARSABLE
