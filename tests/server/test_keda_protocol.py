"""Our trimmed protocol is KEDA's on the wire: its package, service and fields with their numbers and types."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor

from extproc.pb import externalscaler_pb2 as pb
from extproc.server import keda

# Of pkg/scalers/externalscaler/externalscaler.proto of KEDA 2.21.
FIELDS = {
    "ScaledObjectRef": {1: ("name", "string"), 2: ("namespace", "string"), 3: ("scalerMetadata", "message*")},
    "IsActiveResponse": {1: ("result", "bool")},
    "GetMetricSpecResponse": {1: ("metricSpecs", "message*")},
    "MetricSpec": {1: ("metricName", "string"), 2: ("targetSize", "int64"), 3: ("targetSizeFloat", "double")},
    "GetMetricsRequest": {1: ("scaledObjectRef", "message"), 2: ("metricName", "string")},
    "GetMetricsResponse": {1: ("metricValues", "message*")},
    "MetricValue": {1: ("metricName", "string"), 2: ("metricValue", "int64"), 3: ("metricValueFloat", "double")},
}
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_DOUBLE: "double",
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_message_has_kedas_fields(name: str) -> None:
    message = pb.DESCRIPTOR.message_types_by_name[name]
    assert message.full_name == f"externalscaler.{name}"
    assert {
        field.number: (field.name, TYPES[field.type] + "*" * field.is_repeated) for field in message.fields
    } == FIELDS[name]


def test_there_are_no_others() -> None:
    assert set(pb.DESCRIPTOR.message_types_by_name) == set(FIELDS)


def test_each_method_is_served_under_kedas_name() -> None:
    service = pb.DESCRIPTOR.services_by_name["ExternalScaler"]
    assert service.full_name == keda.SERVICE
    methods = {f"/{service.full_name}/{method.name}" for method in service.methods}
    assert {method.name for method in service.methods} == {"IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"}

    class Nobody:
        names = ()

        def get(self, pool: str) -> None:
            raise KeyError(pool)

    assert keda.handlers(keda.KedaScaler(Nobody())).keys() == methods


def test_a_request_as_keda_writes_it_is_understood() -> None:
    """Written out by hand: name, namespace, and two entries of the map."""
    raw = b"\x0a\x04vllm" + b"\x12\x03llm"
    for key, value in ((b"pool", b"vllm"), (b"scalerAddress", b"extproc:9002")):
        entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
        raw += b"\x1a" + bytes([len(entry)]) + entry
    found = pb.ScaledObjectRef.FromString(raw)
    assert (found.name, found.namespace) == ("vllm", "llm")
    assert dict(found.scalerMetadata) == {"pool": "vllm", "scalerAddress": "extproc:9002"}
