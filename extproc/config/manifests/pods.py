"""Which pods with a vLLM server do Kubernetes manifests describe?

A pod is known by its list of `containers`, wherever that stands: in a Pod, in the template of a Deployment or a
StatefulSet, in the leader and worker templates of a LeaderWorkerSet, in a custom resource that holds a pod's spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from extproc.config.tree import Node

# What starts a server: the command, or the module that older images run. Workers of a server over several nodes run
# the same image with neither.
_SERVES = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.\S*api_server\b")
_SERVER_IMAGE = re.compile(r"(^|/)vllm-(openai|cpu|tpu|rocm|hpu|xpu)[^/]*$|(^|/)vllm$")
_TAG = re.compile(r"(:[^/:@]+)?(@.*)?$")  # of an image, and its digest


@dataclass(frozen=True, slots=True)
class Server:
    """A container that runs vLLM."""

    container: Node
    words: tuple[str, ...]  # of its command and arguments

    def option(self, name: str) -> str | None:
        """The value of a command line option, "" where nothing follows it; None: it is not given."""
        found = re.search(rf"(?:^|\s){name}(?:[=\s]+([^\s\"';&|]+)|\s*$)", " ".join(self.words))
        return None if found is None else found[1] or ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's spec with vLLM servers in it."""

    spec: Node
    servers: tuple[Server, ...]
    namespace: str | None  # None: not said
    labels: dict[str, object]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str | None  # None: not said
    match_labels: dict[str, object]

    def covers(self, pod: Pod) -> bool:
        """Whether it holds for the pod, as far as can be told: expressions are taken to match."""
        if None not in (self.namespace, pod.namespace) and self.namespace != pod.namespace:
            return False
        return self.match_labels.items() <= pod.labels.items()


def objects(document: Node) -> Iterator[Node]:
    """The objects in a document: itself, or the items of a list of objects."""
    if document.get("kind") is not None and str(document.fields["kind"].value).endswith("List"):
        yield from document.list_at("items")
    else:
        yield document


def pods_in(thing: Node) -> Iterator[Pod]:
    """The pods with vLLM servers that an object describes."""
    namespace = _text(thing.at("metadata", "namespace"))
    yield from _pods(thing, None, namespace)


def budget_of(thing: Node) -> Budget | None:
    """None: it is something else."""
    if _text(thing.get("kind")) != "PodDisruptionBudget":
        return None
    selector = thing.at("spec", "selector")
    labels = selector.get("matchLabels") if selector is not None else None
    return Budget(_text(thing.at("metadata", "namespace")), _labels(labels))


def _pods(node: Node, parent: Node | None, namespace: str | None) -> Iterator[Pod]:
    containers = node.get("containers")
    if containers is not None and any(item.get("image") or item.get("name") for item in containers.items):
        servers = tuple(server for item in containers.items if (server := _server(item)) is not None)
        if servers:
            labels = parent.at("metadata", "labels") if parent is not None else None
            yield Pod(node, servers, namespace, _labels(labels))
        return
    for child in (*node.fields.values(), *node.items):
        yield from _pods(child, node, namespace)


def _server(container: Node) -> Server | None:
    command, args = container.get("command"), container.get("args")
    words = tuple(str(word.value) for part in (command, args) if part is not None for word in part.items)
    image = _TAG.sub("", _text(container.get("image")) or "")
    by_image = command is None and _SERVER_IMAGE.search(image)
    return Server(container, words) if by_image or _SERVES.search(" ".join(words)) else None


def _labels(node: Node | None) -> dict[str, object]:
    return {name: child.value for name, child in node.fields.items()} if node is not None else {}


def _text(node: Node | None) -> str | None:
    return str(node.value) if node is not None and isinstance(node.value, str | int) else None
