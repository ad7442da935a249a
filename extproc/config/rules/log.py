"""Does the access log bring back what the service needs to know of each request's end?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding
from extproc.config.problems import suggest
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import GRPC_LOG, NAMESPACE, PICK_ID, Extension, View, service_name

SLOW_FLUSH_S = 1.0
TAG = "pick_id"


def _logs(view: View) -> Iterator[tuple[Extension, Any]]:
    """The gRPC access loggers, with their common_config."""
    for chain in view.chains:
        for extension in chain.logs:
            if extension.type == GRPC_LOG and extension.message.common_config is not None:
                yield extension, extension.message.common_config


@rule(
    "access-log-missing",
    WARNING,
    why="Without it the service does not learn which server served after a retry or a fallback, nor how it ended.",
    cure="add envoy.access_loggers.http_grpc to the service's cluster, as in the shipped envoy.yaml",
)
def access_log_missing(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        if chain.processors and not any(extension.type == GRPC_LOG for extension in chain.logs):
            yield say(chain.node, "has no gRPC access log", "access_log")


@rule(
    "access-log-cluster-undefined",
    ERROR,
    why="The log's entries go nowhere.",
    cure="name the service's cluster",
)
def access_log_cluster_undefined(view: View, say: Say) -> Iterator[Finding]:
    if view.bootstrap.at("dynamic_resources", "cds_config") is not None:
        return
    for extension, common in _logs(view):
        name = service_name(common)
        if name and name not in view.clusters:
            field = "common_config.grpc_service.envoy_grpc.cluster_name"
            yield say(extension.config, f'there is no cluster "{name}"', field, suggest(name, view.clusters))


@rule(
    "access-log-flush-slow",
    WARNING,
    why="Until an entry arrives the service takes the first server it named for the one that served.",
    cure="set buffer_flush_interval: 0.25s",
)
def access_log_flush_slow(view: View, say: Say) -> Iterator[Finding]:
    for extension, common in _logs(view):
        interval = common.buffer_flush_interval
        if _is_ours(view, common) and interval is not None and interval.total_seconds() > SLOW_FLUSH_S:
            message = f"{interval.total_seconds():g} s is long"
            yield say(extension.config, message, "common_config.buffer_flush_interval")


@rule(
    "access-log-no-pick-id",
    WARNING,
    why="The tag tells which pick an entry is about; without it an entry cannot be matched to a request.",
    cure=f"add the custom tag {TAG} from request metadata {NAMESPACE}, key {PICK_ID}",
)
def access_log_no_pick_id(view: View, say: Say) -> Iterator[Finding]:
    for extension, common in _logs(view):
        if _is_ours(view, common) and not any(_carries_pick(tag) for tag in common.custom_tags):
            yield say(extension.config, f"has no tag {TAG} with the pick's id", "common_config.custom_tags")


def _is_ours(view: View, common: Any) -> bool:
    """Another log may go elsewhere as it likes."""
    return service_name(common) in {cluster.name for cluster in view.services}


def _carries_pick(tag: Any) -> bool:
    metadata = tag.metadata
    if tag.tag != TAG or metadata is None or metadata.metadata_key is None:
        return False
    return bool(
        metadata.kind is not None
        and metadata.kind.request is not None
        and metadata.metadata_key.key == NAMESPACE
        and [part.key for part in metadata.metadata_key.path] == [PICK_ID]
    )
