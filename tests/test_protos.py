"""Generated code: made from protos/ as they are, and speaking Envoy's own field numbers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from extproc.pb import (
    accesslog_pb2,
    core_pb2,
    discovery_pb2,
    endpoint_pb2,
    ext_proc_pb2,
    externalscaler_pb2,
    health_pb2,
)
from tests.support import typed_envoy

ROOT = Path(__file__).resolve().parents[1]
FILES = [accesslog_pb2, core_pb2, discovery_pb2, endpoint_pb2, ext_proc_pb2]

# Where each of our packages lives in Envoy's own files; some messages and enums of other packages stand with ours.
PACKAGES = {
    "envoy.config.core.v3.": [typed_envoy.core],
    "envoy.config.endpoint.v3.": [typed_envoy.endpoint],
    "envoy.service.discovery.v3.": [typed_envoy.discovery, typed_envoy.rpc],
    "envoy.service.ext_proc.v3.": [typed_envoy.ext_proc, typed_envoy.types, typed_envoy.ext_proc_filter],
    "envoy.service.accesslog.v3.": [typed_envoy.log_service, typed_envoy.log_data],
}
OTHER_NAMES = {"BodySendMode": "ProcessingModeBodySendMode", "ImmediateResponseHttpStatus": "HttpStatus"}


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """case g12"""
    sources = sorted(str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos/extproc/pb").glob("*.proto"))
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-Iprotos",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, *sources], cwd=ROOT, check=True, timeout=60)
    made = {path.name: path.read_bytes() for path in (tmp_path / "extproc/pb").iterdir()}
    kept = {path.name: path.read_bytes() for path in (ROOT / "extproc/pb").glob("*_pb2.py*")}
    assert made.keys() == kept.keys()
    different = [name for name in made if made[name] != kept[name]]
    assert not different, f"`make protos` changes {different}"


def test_our_files_do_not_claim_the_paths_of_envoys_own() -> None:
    """case g12: a second package with envoy/config/core/v3/... in one descriptor pool would be refused"""
    names = [module.DESCRIPTOR.name for module in (*FILES, externalscaler_pb2, health_pb2)]
    assert all(name.startswith("extproc/pb/") for name in names)


def messages() -> list[Descriptor]:
    found: list[Descriptor] = []
    waiting = [message for module in FILES for message in module.DESCRIPTOR.message_types_by_name.values()]
    while waiting:
        message = waiting.pop()
        if not message.GetOptions().map_entry:
            found.append(message)
            waiting += message.nested_types
    return found


def enums() -> list[EnumDescriptor]:
    top = [enum for module in FILES for enum in module.DESCRIPTOR.enum_types_by_name.values()]
    return top + [enum for message in messages() for enum in message.enum_types]


def typed(full_name: str) -> Any:
    """The class of envoy_data_plane for one of our messages or enums."""
    package = next(package for package in PACKAGES if full_name.startswith(package))
    name = full_name.removeprefix(package).replace(".", "").replace("HTTP", "Http")
    name = OTHER_NAMES.get(name, name)
    return next(getattr(module, name) for module in PACKAGES[package] if hasattr(module, name))


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.full_name)
def test_each_field_has_envoys_number_name_and_wire_type(message: Descriptor) -> None:
    theirs = {f.name: f.metadata["betterproto"] for f in dataclasses.fields(typed(message.full_name))}
    for field in message.fields:
        assert field.name in theirs, f"Envoy's {message.name} has no {field.name}"
        other = theirs[field.name]
        assert field.number == other.number, field.full_name
        assert wire_type(field) == {"map": "message", "enum": "int32"}.get(other.proto_type, other.proto_type)
        assert field.is_repeated == (other.repeated or other.proto_type == "map"), field.full_name


def wire_type(field: FieldDescriptor) -> str:
    names = {
        FieldDescriptor.TYPE_MESSAGE: "message",
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_BYTES: "bytes",
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_ENUM: "int32",
        FieldDescriptor.TYPE_INT32: "int32",
        FieldDescriptor.TYPE_UINT32: "uint32",
        FieldDescriptor.TYPE_UINT64: "uint64",
    }
    return names[field.type]


@pytest.mark.parametrize("enum", enums(), ids=lambda enum: enum.full_name)
def test_each_enum_value_has_envoys_number(enum: EnumDescriptor) -> None:
    theirs = {each.name: each.value for each in typed(enum.full_name)}
    assert {value.name: value.number for value in enum.values}.items() <= theirs.items()
