"""What does a ProcessingRequest say, as an exchange's values?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from extproc.endpoint import Address
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.pb.ext_proc_pb2 import NONE as NO_BODY
from extproc.pb.ext_proc_pb2 import ProcessingRequest
from extproc.request import RawRequest, Route

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
SERVED_NAMESPACE = "envoy.lb"
SERVED_KEY = "x-gateway-destination-endpoint-served"

_PARTS = {
    "request_headers": Part.REQUEST_HEADERS,
    "request_body": Part.REQUEST_BODY,
    "request_trailers": Part.REQUEST_TRAILERS,
    "response_headers": Part.RESPONSE_HEADERS,
    "response_body": Part.RESPONSE_BODY,
    "response_trailers": Part.RESPONSE_TRAILERS,
}
_MODES = {mode.value: mode for mode in BodyMode}
_WHOLE = frozenset({BodyMode.BUFFERED.value, BodyMode.BUFFERED_PARTIAL.value})
_BODY_PARTS = frozenset({Part.REQUEST_BODY, Part.RESPONSE_BODY})


@lru_cache(maxsize=512)
def _header_name(attribute: str) -> str | None:
    """The header that an attribute like `request.headers['x-session-id']` names; None for another attribute."""
    if attribute.startswith("request.headers[") and attribute.endswith("]"):
        return attribute[len("request.headers[") : -1].strip("'\"").lower()
    return None


def parse(raw: bytes) -> ProcessingRequest:
    """Raises DecodeError: not a ProcessingRequest.

    Envoy copies header bytes into attributes, which are strings: a header that is not UTF-8 makes the whole message
    one that does not parse. Such a request is read without its attributes, so that it still gets a pick.
    """
    try:
        return ProcessingRequest.FromString(raw)
    except DecodeError:
        return ProcessingRequest.FromString(_without_field(raw, ProcessingRequest.ATTRIBUTES_FIELD_NUMBER))


def _without_field(raw: bytes, number: int) -> bytes:
    """A serialised message less one top-level field (protobuf's wire format: varint tag, then by wire type)."""
    kept, at = bytearray(), 0
    while at < len(raw):
        start = at
        tag, at = _varint(raw, at)
        match tag & 7:
            case 0:
                _, at = _varint(raw, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(raw, at)
                at += size
            case 5:
                at += 4
            case _:
                raise DecodeError("unknown wire type")
        if tag >> 3 != number:
            kept += raw[start:at]
    return bytes(kept)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A varint and the position after it."""
    value = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise DecodeError("truncated varint")


def part_of(message: ProcessingRequest) -> Part | None:
    """The part a message is about; None for a kind of message we do not know."""
    kind = message.WhichOneof("request")
    return _PARTS[kind] if kind is not None else None


def opening(message: ProcessingRequest, route: Route) -> Opening:
    """What the first message of a stream carries beside its part."""
    config = message.protocol_config
    method, path, headers = _facts(message)
    return Opening(
        request_body=_mode(config.request_body_mode),
        response_body=_mode(config.response_body_mode),
        observe_only=message.observability_mode,
        method=method,
        path=path,
        headers=headers,
        route=route,
        subset=_subset(message) if message.HasField("metadata_context") else None,
    )


def is_whole_body(message: ProcessingRequest) -> bool:
    """Whether this first message is all that an exchange of shape BODY_FIRST asks of us."""
    config = message.protocol_config
    return (
        message.WhichOneof("request") == "request_body"
        and config.request_body_mode in _WHOLE
        and config.response_body_mode == NO_BODY  # else there is a response to look at, and perhaps to hand back
        and not message.observability_mode
    )


def whole_request(message: ProcessingRequest, route: Route) -> RawRequest:
    """The request of a message for which `is_whole_body` holds."""
    method, path, headers = _facts(message)
    subset = _subset(message) if message.HasField("metadata_context") else None
    return RawRequest(method, path, headers, message.request_body.body, route, subset)


def _facts(message: ProcessingRequest) -> tuple[str, str, dict[str, str]]:
    """Method, path and single headers, as far as Envoy sent them as request attributes."""
    method = path = ""
    headers: dict[str, str] = {}
    for struct in message.attributes.values():
        for key, value in struct.fields.items():
            if key == "request.path":
                path = value.string_value
            elif key == "request.method":
                method = value.string_value
            elif (name := _header_name(key)) is not None:
                headers[name] = value.string_value
    return method, path, headers


def event(message: ProcessingRequest, part: Part) -> Event:
    """The event of a message about `part`."""
    if part in _BODY_PARTS:
        body = message.request_body if part is Part.REQUEST_BODY else message.response_body
        return Event(part, body.end_of_stream, body.body)
    if part is Part.REQUEST_HEADERS:
        http = message.request_headers
        return Event(part, http.end_of_stream, headers=_headers(http.headers.headers))
    if part is Part.RESPONSE_HEADERS:
        response = message.response_headers
        served = _served(message) if message.HasField("metadata_context") else None
        return Event(part, response.end_of_stream, status=_status(response.headers.headers), served=served)
    return Event(part, True)


def _mode(number: int) -> BodyMode:
    return _MODES.get(number, BodyMode.NONE)  # of a mode newer than us only the headers can be relied on


def _headers(headers: Any) -> Mapping[str, str]:
    """Envoy fills `raw_value`; other data planes may fill `value`. Bytes that are not UTF-8 never raise."""
    return {h.key.lower(): h.raw_value.decode("utf-8", "replace") if h.raw_value else h.value for h in headers}


def _status(headers: Any) -> int | None:
    """Of a response. It comes first; None: it is not there, or not a number."""
    for header in headers:
        if header.key == ":status":
            text = (header.raw_value or header.value.encode()).decode("ascii", "replace")
            return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else None
    return None


@lru_cache(maxsize=4096)  # a fleet's few addresses come with every response
def _address(text: str) -> Address | None:
    try:
        return Address.parse(text)
    except ValueError:
        return None


def _served(message: ProcessingRequest) -> Address | None:
    """The server that answers, as the gateway tells it; None: it does not."""
    namespaces = message.metadata_context.filter_metadata
    if SERVED_NAMESPACE not in namespaces:
        return None
    fields = namespaces[SERVED_NAMESPACE].fields
    return _address(fields[SERVED_KEY].string_value) if SERVED_KEY in fields else None


def _subset(message: ProcessingRequest) -> frozenset[str] | None:
    """The gateway's subset hint: a list, or a string with commas. Present but empty allows nothing."""
    namespaces = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in namespaces:
        return None
    fields = namespaces[SUBSET_NAMESPACE].fields
    if SUBSET_KEY not in fields:
        return None
    value = fields[SUBSET_KEY]
    texts = [item.string_value for item in value.list_value.values] or value.string_value.split(",")
    return frozenset(text.strip() for text in texts if text.strip())
