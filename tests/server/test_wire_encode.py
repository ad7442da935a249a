"""What we say to Envoy, read by another code generator, is what was meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.decision import Pick, Rejection, RejectionReason
from extproc.endpoint import Address
from extproc.exchange.actions import Continue, EchoBody, SendPick
from extproc.exchange.events import Part
from extproc.server import encode
from tests.support.typed_envoy import core, ext_proc, types

PICK = Pick("ab-1f", Address.of("fd00::10", 8000), (Address.of("10.0.0.2", 8000),), "[fd00::10]:8000,10.0.0.2:8000")
OVERWRITE = core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
KINDS = [part.name.lower() for part in Part]


def read(raw: bytes) -> Any:
    return ext_proc.ProcessingResponse.parse(raw)


def kind(message: Any) -> str:
    set_ = [name for name in (*KINDS, "immediate_response") if getattr(message, name) is not None]
    assert len(set_) == 1
    return set_[0]


@pytest.mark.parametrize("part", list(Part))
def test_a_plain_answer_is_of_the_parts_kind_and_changes_nothing(part: Part) -> None:
    message = read(encode.continue_(Continue(part)))
    assert kind(message) == part.name.lower()
    common = getattr(getattr(message, kind(message)), "response", None)
    assert common is None or (common.header_mutation is None and common.body_mutation is None)
    assert message.dynamic_metadata is None


def test_the_clients_destination_header_is_removed_where_asked() -> None:
    """case b01"""
    message = read(encode.continue_(Continue(Part.REQUEST_HEADERS, strip_destination=True)))
    assert message.request_headers.response.header_mutation == ext_proc.HeaderMutation(
        remove_headers=["x-gateway-destination-endpoint"]
    )


@pytest.mark.parametrize("part", [Part.REQUEST_HEADERS, Part.REQUEST_BODY])
def test_the_pick_is_the_same_in_header_and_metadata(part: Part) -> None:
    """R1, case b03; a header is written with raw_value alone, and overwrites the client's (cases a17, b01)"""
    message = read(encode.pick(SendPick(part, PICK, as_header=True)))
    assert kind(message) == part.name.lower()
    common = getattr(message, kind(message)).response
    [option] = common.header_mutation.set_headers
    assert option.header == core.HeaderValue(
        key="x-gateway-destination-endpoint", raw_value=b"[fd00::10]:8000,10.0.0.2:8000"
    )
    assert option.header.value == ""
    assert option.append_action == OVERWRITE
    assert metadata(message) == {
        "x-gateway-destination-endpoint": "[fd00::10]:8000,10.0.0.2:8000",
        "x-gateway-pick-id": "ab-1f",
    }
    assert common.body_mutation is None, "the body is never changed"


@pytest.mark.parametrize("part", [Part.REQUEST_HEADERS, Part.REQUEST_BODY, Part.REQUEST_TRAILERS])
def test_a_pick_without_a_header_is_metadata_alone(part: Part) -> None:
    message = read(encode.pick(SendPick(part, PICK, as_header=False)))
    reply = getattr(message, kind(message))
    mutation = reply.header_mutation if part is Part.REQUEST_TRAILERS else reply.response.header_mutation
    assert mutation is None
    assert metadata(message)["x-gateway-destination-endpoint"] == PICK.destination


def metadata(message: Any) -> dict[str, str]:
    assert set(message.dynamic_metadata.fields) == {"envoy.lb"}
    fields = message.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    return {key: value.string_value for key, value in fields.items()}


@pytest.mark.parametrize("part", [Part.REQUEST_BODY, Part.RESPONSE_BODY])
@pytest.mark.parametrize(("body", "end"), [(b"\x00chunk", False), (b"", True)])
def test_an_echo_is_a_streamed_response(part: Part, body: bytes, end: bool) -> None:
    message = read(encode.echo(EchoBody(part, body, end)))
    assert kind(message) == part.name.lower()
    streamed = getattr(message, kind(message)).response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (body, end)


def test_a_model_that_does_not_exist_is_told_as_vllm_tells_it() -> None:
    """case c19"""
    refusal = Rejection(RejectionReason.MODEL_NOT_FOUND, 404, "The model `x` does not exist.")
    assert json.loads(read(encode.rejection(refusal)).immediate_response.body) == {
        "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    }


@pytest.mark.parametrize(
    ("rejection", "error_type"),
    [
        (Rejection(RejectionReason.NO_ENDPOINTS, 503, "No server.", retry_after_s=1), "server_error"),
        (Rejection(RejectionReason.INVALID, 413, 'Too "big".'), "invalid_request_error"),
    ],
)
def test_a_rejection_is_an_openai_error_that_says_when_to_come_back(rejection: Rejection, error_type: str) -> None:
    """cases a01, c13, f09"""
    message = read(encode.rejection(rejection))
    assert kind(message) == "immediate_response"
    immediate = message.immediate_response
    assert immediate.status.code == types.StatusCode(rejection.status)
    assert json.loads(immediate.body) == {
        "error": {"message": rejection.message, "type": error_type, "param": None, "code": str(rejection.reason)}
    }
    headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
    expected = {"content-type": b"application/json"}
    if rejection.retry_after_s is not None:
        expected["retry-after"] = b"1"
    assert headers == expected
    assert all(option.append_action == OVERWRITE for option in immediate.headers.set_headers)
    assert immediate.details == f"extproc_{rejection.reason}"
    assert message.dynamic_metadata is None
