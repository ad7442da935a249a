"""What JSON object is in a body, if reading it is safe and quick?

The service routes all requests on one thread, so what one body costs, all others wait for. Every step has a bound that
keeps it near 10 ms (20 ms for bodies built to be slow); a body past a bound is routed by load. The times beside the
bounds were measured on one core of a shared server.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from extproc.openai.media import elide
from extproc.request import NoPrompt

# 2 MB of JSON are read in 1 to 5 ms (ASCII to mixed text). It is a prompt of about 500,000 tokens.
MAX_JSON_BYTES = 2 * 1024 * 1024
# The standard library is 2 to 5 times slower; it reads what the fast parser refuses.
MAX_ODD_JSON_BYTES = 512 * 1024
# Data URLs are looked for only in bodies that are long for a text; the search itself takes time.
ELIDE_FROM_BYTES = 512 * 1024
# Nanoseconds to build one object, array or element; 100,000 of each took 23, 11 and 2.3 ms.
_OBJECT_NS, _ARRAY_NS, _ELEMENT_NS = 230, 110, 23
MAX_STRUCTURE_NS = 10_000_000
# Counting takes 0.4 ms per 400 KB, as long as reading them. Below this size the worst body, `[[],[],...`, takes 19 ms.
STRUCTURE_FROM_BYTES = 512 * 1024

_BOMS_AND_SPACE = b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n"


def _optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


_zstandard = _optional("zstandard")


def read_object(body: bytes, headers: Mapping[str, str]) -> dict[str, Any] | NoPrompt:
    """The JSON object of a body. Duplicate keys: the last wins, as for vLLM. Never raises for anything in the body."""
    if not body:
        return NoPrompt.NO_BODY
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        decoded = _decode(body, coding)
        if isinstance(decoded, NoPrompt):
            return decoded
        body = decoded
    if body.lstrip(_BOMS_AND_SPACE)[:1] != b"{":
        return NoPrompt.UNPARSABLE
    if len(body) > ELIDE_FROM_BYTES:
        body = elide(body)
    if len(body) > MAX_JSON_BYTES or (len(body) > STRUCTURE_FROM_BYTES and _structure_ns(body) > MAX_STRUCTURE_NS):
        return NoPrompt.TOO_LARGE
    return _parse(body)


def _structure_ns(body: bytes) -> int:
    """An upper bound: the same characters within strings are counted, too."""
    return body.count(b"{") * _OBJECT_NS + body.count(b"[") * _ARRAY_NS + body.count(b",") * _ELEMENT_NS


def _decode(body: bytes, coding: str) -> bytes | NoPrompt:
    """Undo one compression, up to the bound. Stacked, cut, unknown or broken ones stay as they are."""
    try:
        if coding in ("gzip", "x-gzip", "deflate"):
            return _inflate(body, zlib.MAX_WBITS | 32)
        if coding == "zstd" and _zstandard is not None:
            reader = _zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024).stream_reader(body)
            text: bytes = reader.read(MAX_JSON_BYTES + 1)
            return text if len(text) <= MAX_JSON_BYTES else NoPrompt.TOO_LARGE
    except Exception:  # each library has its own errors for a broken stream
        return NoPrompt.ENCODED
    return NoPrompt.ENCODED


def _inflate(body: bytes, window: int) -> bytes | NoPrompt:
    inflater = zlib.decompressobj(window)
    text = inflater.decompress(body, MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        return NoPrompt.TOO_LARGE
    return text if inflater.eof and not inflater.unused_data else NoPrompt.ENCODED


def _parse(body: bytes) -> dict[str, Any] | NoPrompt:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Deep nesting is not tried again: how deep the standard library goes differs between Python versions.
        if len(body) > MAX_ODD_JSON_BYTES or error.msg.startswith(("depth", "Recursion")):
            return NoPrompt.UNPARSABLE
        value = _parse_like_the_server(body)
    return value if isinstance(value, dict) else NoPrompt.UNPARSABLE


def _parse_like_the_server(body: bytes) -> Any:
    """vLLM reads bodies with the standard library: also halves of surrogate pairs, NaN, a BOM, UTF-16."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
