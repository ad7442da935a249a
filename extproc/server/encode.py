"""How is an action said to Envoy? Fixed answers are serialised once."""

from __future__ import annotations

from extproc.decision import Pick, Rejection
from extproc.exchange.actions import Continue, EchoBody, SendPick
from extproc.exchange.events import Part
from extproc.openai.errors import error_body
from extproc.pb.core_pb2 import HeaderValueOption
from extproc.pb.ext_proc_pb2 import CommonResponse, HeaderMutation, ProcessingResponse

DESTINATION = "x-gateway-destination-endpoint"  # as header and as metadata key
PICK_ID = "x-gateway-pick-id"  # metadata key; the access log brings it back
NAMESPACE = "envoy.lb"

_FIELDS = {part: part.name.lower() for part in Part}
_TRAILERS = frozenset({Part.REQUEST_TRAILERS, Part.RESPONSE_TRAILERS})
_OVERWRITE = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


def _reply(part: Part) -> ProcessingResponse:
    message = ProcessingResponse()
    reply = getattr(message, _FIELDS[part])
    if part in _TRAILERS:
        reply.SetInParent()
    else:
        reply.response.SetInParent()
    return message


def _stripping(part: Part) -> bytes:
    message = _reply(part)
    getattr(message, _FIELDS[part]).response.header_mutation.remove_headers.append(DESTINATION)
    return message.SerializeToString()


_CONTINUE = {part: _reply(part).SerializeToString() for part in Part}
_STRIP = {part: _stripping(part) for part in (Part.REQUEST_HEADERS,)}


def continue_(action: Continue) -> bytes:
    return _STRIP[action.part] if action.strip_destination else _CONTINUE[action.part]


def pick(action: SendPick) -> bytes:
    """The destination as metadata of namespace `envoy.lb`, and as a header that overwrites the client's."""
    message = _reply(action.part)
    _put_metadata(message, action.pick)
    if action.as_header:
        common: CommonResponse = getattr(message, _FIELDS[action.part]).response
        _set_header(common.header_mutation, DESTINATION, action.pick.destination.encode())
    return message.SerializeToString()


def whole_body_pick(value: Pick) -> bytes:
    """`pick` for shape BODY_FIRST: on the body, without a header, which could no longer reach the upstream."""
    message = ProcessingResponse()
    message.request_body.response.SetInParent()
    _put_metadata(message, value)
    return message.SerializeToString()


def echo(action: EchoBody) -> bytes:
    message = _reply(action.part)
    streamed = getattr(message, _FIELDS[action.part]).response.body_mutation.streamed_response
    streamed.SetInParent()
    streamed.body = action.body
    streamed.end_of_stream = action.end_of_stream
    return message.SerializeToString()


def rejection(value: Rejection) -> bytes:
    message = ProcessingResponse()
    immediate = message.immediate_response
    immediate.status.code = value.status
    immediate.body = error_body(value)
    immediate.details = f"extproc_{value.reason}"
    _set_header(immediate.headers, "content-type", b"application/json")
    if value.retry_after_s is not None:
        _set_header(immediate.headers, "retry-after", str(value.retry_after_s).encode())
    return message.SerializeToString()


def _put_metadata(message: ProcessingResponse, value: Pick) -> None:
    fields = message.dynamic_metadata.fields[NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = value.destination
    fields[PICK_ID].string_value = value.pick_id


def _set_header(mutation: HeaderMutation, name: str, value: bytes) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value  # only raw_value: Envoy refuses a mutation with both set
    option.append_action = _OVERWRITE
