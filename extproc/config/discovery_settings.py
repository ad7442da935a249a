"""Where may the servers of a pool come from, when they are not listed in the configuration?"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from extproc.config.section import Seconds, Section, model_names
from extproc.endpoint import Address

_DNS_PORT = 53


def _dns_server(text: str) -> Address:
    """Raises ValueError for what is neither an IP address nor ip:port."""
    try:
        return Address.of(text.strip(), _DNS_PORT)
    except ValueError:
        pass
    try:
        return Address.parse(text)
    except ValueError:
        raise ValueError(f'"{text}" is not the address of a DNS server; write an IP address, or ip:port') from None


class FileDiscoverySettings(Section):
    """A file that lists the servers, read again when its content changes. docs/discovery.md shows what it may hold."""

    path: str = Field(min_length=1, description="YAML or JSON file that lists the pool's servers.")
    poll_s: Seconds = Field(1.0, description="Time between two looks at the file.")


class SrvDiscoverySettings(Section):
    """DNS SRV records: they give the servers' ports too. They are asked for again when their TTL has passed, at the
    latest after the pool's `dns_refresh_s`."""

    name: str = Field(min_length=1, description="Name of the SRV records, as _http._tcp.vllm.example.")
    servers: tuple[str, ...] = Field(
        (), description="IP addresses (or ip:port) of the DNS servers to ask; empty: those of /etc/resolv.conf."
    )
    model: tuple[str, ...] = Field((), description="As endpoints[].model, for every server found.")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="As endpoints[].metrics_port, for every server found."
    )

    @field_validator("model", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return model_names(value)

    @field_validator("servers")
    @classmethod
    def _servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            _dns_server(text)
        return value

    @property
    def server_addresses(self) -> tuple[Address, ...]:
        """The DNS servers, with the port of DNS where none is given."""
        return tuple(_dns_server(text) for text in self.servers)


class KubernetesDiscoverySettings(Section):
    """The Kubernetes API: the pods behind a Service, of a label selector, or of an InferencePool; one of these three.
    In a pod it is asked with its service account, else with a kubeconfig. docs/kubernetes.md has the role it needs."""

    service: str | None = Field(None, min_length=1, description="The endpoints of this Service (its EndpointSlices).")
    selector: str | None = Field(
        None, min_length=1, description="The pods with these labels, as kubectl's -l: app=vllm,role!=decode; or a map."
    )
    inference_pool: str | None = Field(
        None, min_length=1, description="The pods and ports of this InferencePool (inference.networking.k8s.io/v1)."
    )
    namespace: str | None = Field(
        None, min_length=1, description="Where they are; unset: our own, or the kubeconfig's."
    )
    port: tuple[int | str, ...] = Field(
        (),
        description="Port of the servers: a number, or the name of a port of the Service or the pods. A list: each port"
        " of a pod is a server of its own. Needed with selector; with service only if that has several ports.",
    )
    family: Literal["v4_preferred", "v6_preferred", "v4_only", "v6_only"] = Field(
        "v4_preferred", description="Which one address counts of a pod that has IPv4 and IPv6."
    )
    kubeconfig: str | None = Field(
        None,
        min_length=1,
        description="Path of a kubeconfig; unset: the pod's service account, or else ~/.kube/config.",
    )
    context: str | None = Field(None, min_length=1, description="Context of the kubeconfig; unset: its current one.")
    resync_s: Annotated[float, Field(ge=5, allow_inf_nan=False)] = Field(
        60.0, description="All is listed anew so often (+-10 %), beside what the watch tells at once."
    )

    @field_validator("selector", mode="before")
    @classmethod
    def _labels(cls, value: object) -> object:
        return ",".join(f"{key}={label}" for key, label in value.items()) if isinstance(value, dict) else value

    @field_validator("port", mode="before")
    @classmethod
    def _ports(cls, value: object) -> object:
        ports = list(value) if isinstance(value, list | tuple) else [value]
        for index, port in enumerate(ports):
            if isinstance(port, str) and port.isascii() and port.isdigit():
                ports[index] = port = int(port)
            number = isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535
            if not number and not (isinstance(port, str) and port):
                raise ValueError(f"{port!r} is no port; write a number from 1 to 65535, or the name of a port")
        return ports

    @model_validator(mode="after")
    def _one_of_three(self) -> KubernetesDiscoverySettings:
        ways = ("service", "selector", "inference_pool")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) != 1:
            found = "sets nothing to look for" if not given else f"sets {' and '.join(given)} together"
            raise ValueError(f"{found}; set one of: {', '.join(ways)}")
        if self.selector is not None and not self.port:
            raise ValueError("selector needs a port: add port: 8000, or the name of a container's port")
        if self.inference_pool is not None and self.port:
            raise ValueError("the InferencePool names the ports itself; remove port")
        return self


class DiscoverySettings(Section):
    """Where the servers of a pool come from, when they are not listed in the configuration: one of these."""

    file: FileDiscoverySettings | None = Field(None, description="From a file that is watched.")
    srv: SrvDiscoverySettings | None = Field(None, description="From DNS SRV records.")
    kubernetes: KubernetesDiscoverySettings | None = Field(None, description="From the Kubernetes API.")

    @model_validator(mode="after")
    def _exactly_one(self) -> DiscoverySettings:
        known = list(type(self).model_fields)
        given = [name for name in known if getattr(self, name) is not None]
        if len(given) != 1:
            found = "sets nothing" if not given else f"sets {' and '.join(given)} together"
            raise ValueError(f"{found}; set one of: {', '.join(known)}")
        return self
