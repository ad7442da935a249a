"""What Envoy says, written by another code generator, is read as it was meant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from extproc.decision import Completion
from extproc.endpoint import Address
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.pb import accesslog_pb2
from extproc.pb.ext_proc_pb2 import ProcessingRequest
from extproc.request import ANY_ROUTE, Route
from extproc.server import access_log, decode
from tests.support.typed_envoy import ListValue, Struct, Value, core, ext_proc, ext_proc_filter, log_data, log_service

Mode = ext_proc_filter.ProcessingModeBodySendMode


def read(message: Any) -> ProcessingRequest:
    return ProcessingRequest.FromString(bytes(message))


def event_of(message: Any) -> Event:
    read_ = read(message)
    part = decode.part_of(read_)
    assert part is not None
    return decode.event(read_, part)


def headers(*pairs: tuple[str, bytes]) -> Any:
    return core.HeaderMap(headers=[core.HeaderValue(key=key, raw_value=value) for key, value in pairs])


PATH = (":path", b"/v1/chat/completions")


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (
            ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders(headers=headers(PATH), end_of_stream=True)),
            Event(Part.REQUEST_HEADERS, True, headers={":path": "/v1/chat/completions"}),
        ),
        (
            ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders()),
            Event(Part.REQUEST_HEADERS),
        ),
        (
            ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=b"\x00\xff{", end_of_stream=True)),
            Event(Part.REQUEST_BODY, True, b"\x00\xff{"),
        ),
        (ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody()), Event(Part.REQUEST_BODY)),
        (
            ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers(trailers=headers(("x", b"1")))),
            Event(Part.REQUEST_TRAILERS, True),
        ),
        (
            ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders(headers=headers((":status", b"200")))),
            Event(Part.RESPONSE_HEADERS, status=200),
        ),
        (
            ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders(end_of_stream=True)),
            Event(Part.RESPONSE_HEADERS, True),
        ),
        (
            ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=b"data: x\n\n")),
            Event(Part.RESPONSE_BODY, False, b"data: x\n\n"),
        ),
        (
            ext_proc.ProcessingRequest(response_trailers=ext_proc.HttpTrailers()),
            Event(Part.RESPONSE_TRAILERS, True),
        ),
    ],
    ids=lambda value: value.part.name if isinstance(value, Event) else "",
)
def test_each_kind_of_message_is_its_event(message: Any, event: Event) -> None:
    assert event_of(message) == event


def test_a_header_is_read_from_raw_value_else_from_value_and_its_name_in_lower_case() -> None:
    """case a17"""
    pairs = [
        core.HeaderValue(key=":path", raw_value=b"/raw"),
        core.HeaderValue(key="X-Session-Id", value="from value"),
        core.HeaderValue(key="x-empty"),
        core.HeaderValue(key="x-latin", raw_value=b"\xe9t\xe9"),
    ]
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders(headers=core.HeaderMap(headers=pairs)))
    assert event_of(message).headers == {
        ":path": "/raw",
        "x-session-id": "from value",
        "x-empty": "",
        "x-latin": "\ufffdt\ufffd",
    }


@pytest.mark.parametrize("mode", list(BodyMode))
def test_the_body_modes_are_read_from_the_first_message(mode: BodyMode) -> None:
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(),
        observability_mode=True,
        protocol_config=ext_proc.ProtocolConfiguration(
            request_body_mode=Mode(mode.value), response_body_mode=Mode.FULL_DUPLEX_STREAMED
        ),
    )
    opening = decode.opening(read(message), Route("a-pool"))
    assert opening == Opening(mode, BodyMode.FULL_DUPLEX_STREAMED, observe_only=True, route=Route("a-pool"))


@pytest.mark.parametrize("number", [5, 6, 99])
def test_of_a_body_mode_newer_than_us_only_the_headers_are_relied_on(number: int) -> None:
    message = ProcessingRequest()
    message.protocol_config.request_body_mode = number  # type: ignore[assignment]
    assert decode.opening(message, ANY_ROUTE).request_body is BodyMode.NONE


def test_attributes_give_path_method_and_single_headers() -> None:
    """Shape A has no headers message"""
    fields = {
        "request.path": Value(string_value="/v1/completions?x"),
        "request.method": Value(string_value="POST"),
        "request.headers['x-session-id']": Value(string_value="s-1"),
        'request.headers["X-Tenant"]': Value(string_value="t"),
        "request.headers": Value(string_value="CelMap value"),
        "source.port": Value(number_value=4711.0),
    }
    message = ext_proc.ProcessingRequest(
        request_body=ext_proc.HttpBody(), attributes={"envoy.filters.http.ext_proc": Struct(fields=fields)}
    )
    opening = decode.opening(read(message), ANY_ROUTE)
    assert (opening.path, opening.method) == ("/v1/completions?x", "POST")
    assert opening.headers == {"x-session-id": "s-1", "x-tenant": "t"}


def hinted(value: Any, namespace: str = "envoy.lb.subset_hint") -> Opening:
    hint = Struct(fields={"x-gateway-destination-endpoint-subset": value})
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(), metadata_context=core.Metadata(filter_metadata={namespace: hint})
    )
    return decode.opening(read(message), ANY_ROUTE)


def test_the_gateways_subset_comes_as_a_list_or_with_commas() -> None:
    values = [Value(string_value="10.0.0.1:8000"), Value(string_value=" [fd00::10]:8000")]
    expected = frozenset({"10.0.0.1:8000", "[fd00::10]:8000"})
    assert hinted(Value(list_value=ListValue(values=values))).subset == expected
    assert hinted(Value(string_value="10.0.0.1:8000, [fd00::10]:8000,")).subset == expected


def test_a_subset_that_is_there_but_empty_allows_nothing_and_an_absent_one_everything() -> None:
    """case b08"""
    assert hinted(Value(list_value=ListValue())).subset == frozenset()
    assert hinted(Value(string_value="")).subset == frozenset()
    assert hinted(Value(string_value="10.0.0.1"), namespace="envoy.lb").subset is None
    assert decode.opening(read(ext_proc.ProcessingRequest()), ANY_ROUTE).subset is None


def test_a_header_named_like_the_hint_is_no_hint() -> None:
    """case b08: only metadata of the gateway counts"""
    pair = ("x-gateway-destination-endpoint-subset", b"10.0.0.1:8000")
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders(headers=headers(pair)))
    assert decode.opening(read(message), ANY_ROUTE).subset is None


def test_a_message_of_a_kind_that_we_do_not_know_has_no_part() -> None:
    assert decode.part_of(ProcessingRequest.FromString(b"\xa2\x06\x00")) is None  # field 100


# The access log


def entry(**common: Any) -> Completion:
    response = common.pop("response", None)
    batch = log_service.StreamAccessLogsMessage(
        http_logs=log_service.StreamAccessLogsMessageHttpAccessLogEntries(
            log_entry=[
                log_data.HttpAccessLogEntry(common_properties=log_data.AccessLogCommon(**common), response=response)
            ]
        )
    )
    read_ = accesslog_pb2.StreamAccessLogsMessage.FromString(bytes(batch))
    [only] = read_.http_logs.log_entry
    return access_log.completion(only)


def upstream(ip: str, port: int) -> Any:
    return core.Address(socket_address=core.SocketAddress(address=ip, port_value=port))


def test_an_entry_tells_who_served_how_and_when() -> None:
    """R1"""
    completion = entry(
        upstream_remote_address=upstream("10.0.0.2", 8000),
        upstream_cluster="vllm",
        custom_tags={"pick_id": "ab-1", "picked": "10.0.0.1:8000,10.0.0.2:8000"},
        duration=timedelta(seconds=12, milliseconds=500),
        time_to_first_upstream_rx_byte=timedelta(milliseconds=25),
        upstream_request_attempt_count=2,
        access_log_type=log_data.AccessLogType.DownstreamEnd,
        response=log_data.HttpResponseProperties(response_code=200, response_code_details="via_upstream"),
    )
    assert completion == Completion(
        pick_id="ab-1",
        served=Address.of("10.0.0.2", 8000),
        final=True,
        status=200,
        details="via_upstream",
        attempts=2,
        duration_s=12.5,
        first_byte_s=0.025,
        cluster="vllm",
    )


def test_what_an_entry_does_not_tell_is_none() -> None:
    completion = entry()
    assert completion == Completion(pick_id=None, served=None, final=True)


def test_an_ipv6_upstream_is_the_endpoint_with_the_same_address() -> None:
    """case b03"""
    assert entry(upstream_remote_address=upstream("fd00:0::10", 8000)).served == Address.of("fd00::10", 8000)


@pytest.mark.parametrize(
    "address", [upstream("", 0), upstream("not-an-ip", 80), core.Address(pipe=core.Pipe(path="/run/x"))]
)
def test_an_upstream_that_is_no_ip_address_is_none(address: Any) -> None:
    assert entry(upstream_remote_address=address).served is None


@pytest.mark.parametrize(
    "flag",
    [
        "failed_local_healthcheck",
        "no_healthy_upstream",
        "upstream_request_timeout",
        "local_reset",
        "upstream_remote_reset",
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_overflow",
        "no_route_found",
        "downstream_connection_termination",
        "upstream_retry_limit_exceeded",
        "stream_idle_timeout",
        "downstream_protocol_error",
        "upstream_max_stream_duration_reached",
        "duration_timeout",
        "upstream_protocol_error",
        "no_cluster_found",
        "overload_manager",
        "downstream_remote_reset",
    ],
)
def test_each_response_flag_has_its_name(flag: str) -> None:
    assert entry(response_flags=log_data.ResponseFlags(**{flag: True})).flags == (flag,)


@pytest.mark.parametrize(
    ("kind", "final"),
    [
        ("NotSet", True),
        ("DownstreamEnd", True),
        ("DownstreamStart", False),
        ("DownstreamPeriodic", False),
        ("UpstreamPoolReady", False),
        ("UpstreamPeriodic", False),
    ],
)
def test_only_an_entry_about_the_end_is_final(kind: str, final: bool) -> None:
    assert entry(access_log_type=log_data.AccessLogType[kind]).final == final
