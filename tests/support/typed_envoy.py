"""Envoy's messages as typed classes, from another code generator than ours: what both agree on is the wire."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Its generated validators are written for an older pydantic.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
    from envoy_data_plane.envoy.data.accesslog import v3 as log_data
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc_filter
    from envoy_data_plane.envoy.service.accesslog import v3 as log_service
    from envoy_data_plane.envoy.service.discovery import v3 as discovery
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.type import v3 as types
    from envoy_data_plane.google import rpc
    from envoy_data_plane.google.protobuf import ListValue, Struct, Value

__all__ = [
    "ListValue",
    "Struct",
    "Value",
    "core",
    "discovery",
    "endpoint",
    "ext_proc",
    "ext_proc_filter",
    "log_data",
    "log_service",
    "rpc",
    "types",
]
