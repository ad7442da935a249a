"""Which manifests does one start from in Kubernetes? A folder of one's own for Kustomize, over the shipped manifests.

The folder holds those unchanged, so that it needs no checkout and a newer version replaces them as a whole; a
kustomization.yaml with what differs; and the envoy.yaml, which is one's own to change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.config.problems import suggest
from extproc.config.starter.patch import Patch
from extproc.config.starter.wish import WishError
from extproc.scheduling.profiles import PROFILES

NAMESPACE = "llm"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as names of namespaces and Services have to be
_IMAGE = re.compile(r"(?P<name>[^\s@]*?[^\s@:/])(:(?P<tag>[\w][\w.-]{0,127}))?(@(?P<digest>[a-z0-9]+:[0-9a-f]{32,}))?")
_LEAST = 2  # servers, as the shipped section autoscale has it
_VLLM = (("apps/v1", "Deployment"), ("v1", "Service"), ("policy/v1", "PodDisruptionBudget"))
_POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
_OURS = ("node", "metadata", "extproc")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is wished. Raises WishError for what cannot be."""

    namespace: str = NAMESPACE
    image: str | None = None  # of extproc; None: as shipped
    service: str | None = None  # set: vLLM runs already, behind this Service
    model: str | None = None  # None: as shipped
    profile: str | None = None  # None: as shipped
    max_servers: int | None = None  # set: KEDA scales vLLM up to so many

    def __post_init__(self) -> None:
        for option, name in (("namespace", self.namespace), ("service", self.service)):
            if name is not None and _LABEL.fullmatch(name) is None:
                raise WishError(option, f'"{name}" is no name in Kubernetes: lower-case letters, digits and -')
        if self.image is not None and _IMAGE.fullmatch(self.image) is None:
            raise WishError("image", f'"{self.image}" is no image; write it as registry/name:tag')
        if self.profile is not None and self.profile not in PROFILES:
            raise WishError("profile", f'unknown "{self.profile}"; {suggest(self.profile, PROFILES)}')
        if self.service is not None and self.model is not None:
            raise WishError(
                "model", "is not started here with --service: its servers tell what they serve; leave it out"
            )
        if self.service is not None and self.max_servers is not None:
            raise WishError(
                "autoscale",
                "scales the vLLM that is started here, not one behind --service; docs/autoscale-kubernetes.md",
            )
        if self.max_servers is not None and self.max_servers < _LEAST:
            raise WishError("autoscale", f"must be {_LEAST} at least, the number that runs in any case")


def files(shipped: Mapping[str, str], wish: Cluster) -> dict[str, str]:
    """The folder, by paths in it. `shipped`: the folder envoy/kubernetes likewise.

    Raises:
        LookupError: the shipped files are not of the form that this knows.
    """
    wanted = ["base/"] + ["components/keda/"] * (wish.max_servers is not None)
    copied = {path: text for path, text in shipped.items() if path.startswith(tuple(wanted))}
    return {"kustomization.yaml": _kustomization(wish), "envoy.yaml": _envoy(copied["base/envoy.yaml"], wish), **copied}


def _envoy(base: str, wish: Cluster) -> str:
    patch = Patch(base)
    if wish.profile is not None:
        patch.rest_of_line(f"{json.dumps(wish.profile)}     # docs/routing.md", *_OURS, "scheduling", "profile")
    pool = (*_OURS, "pools", "vllm")
    if wish.service is not None:
        service = (
            f"{{service: {json.dumps(wish.service)}}}    # your Service of vLLM; if it has several ports, port: NAME"
        )
        patch.rest_of_line(service, *pool, "discovery", "kubernetes")
    if wish.max_servers is not None:
        patch.value(str(wish.max_servers), *pool, "autoscale", "max_replicas")
    return patch.text()


def _kustomization(wish: Cluster) -> str:
    lines = [
        "# Made by `extproc init --kubernetes`. base/ and components/ are as shipped, and a newer version replaces",
        "# them; what is yours stands here and in envoy.yaml. docs/kubernetes.md tells what is in it.",
        "apiVersion: kustomize.config.k8s.io/v1beta1",
        "kind: Kustomization",
        f"namespace: {json.dumps(wish.namespace)}",
        "resources:",
        "- base",
    ]
    if wish.max_servers is not None:
        lines += ["components:", "- components/keda"]
    if wish.image is not None:
        lines += ["images:", f"- {_image(wish.image)}"]
    lines += ["configMapGenerator:", "- name: envoy", "  behavior: replace", "  files: [envoy.yaml]"]
    patches = _patches(wish)
    if patches:
        lines += ["patches:", *patches]
    return "\n".join(lines) + "\n"


def _patches(wish: Cluster) -> list[str]:
    lines: list[str] = []
    if wish.model is not None:
        lines += _replace("Deployment", "/spec/template/spec/containers/0/args/0", f"--model={wish.model}")
    if wish.max_servers is not None:
        address = f"extproc.{wish.namespace}.svc:9002"
        lines += _replace("ScaledObject", "/spec/maxReplicaCount", wish.max_servers)
        lines += _replace("ScaledObject", "/spec/triggers/0/metadata/scalerAddress", address)
    if wish.service is not None:
        for version, kind in (*_VLLM, _POLICY):
            lines += [
                f"- target: {{kind: {kind}, name: vllm}}",
                "  patch: |-",
                "    $patch: delete",
                f"    apiVersion: {version}",
                f"    kind: {kind}",
                "    metadata: {name: vllm}",
            ]
    return lines


def _replace(kind: str, path: str, value: str | int) -> list[str]:
    return [
        f"- target: {{kind: {kind}, name: vllm}}",
        "  patch: |-",
        f"    - {{op: replace, path: {path}, value: {json.dumps(value)}}}",
    ]


def _image(reference: str) -> str:
    """As an entry of `images`."""
    match = _IMAGE.fullmatch(reference)
    assert match is not None, "seen to by Cluster"
    parts = {"name": "vllm-extproc", "newName": match["name"], "newTag": match["tag"], "digest": match["digest"]}
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in parts.items() if value is not None) + "}"
