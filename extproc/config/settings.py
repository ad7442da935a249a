"""What can an operator set? The one schema, whether it stands in envoy.yaml or in a file of its own.

In envoy.yaml it is `node.metadata.extproc`, and the pools' endpoints come from the clusters. In a file of its own
it is the top level, and `pools.<name>.endpoints` lists them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from extproc.config.autoscale_settings import AutoscaleSettings
from extproc.config.discovery_settings import DiscoverySettings
from extproc.config.section import Seconds, Section, model_names
from extproc.config.tracing_settings import TracingSettings
from extproc.endpoint import split_host_port
from extproc.openai.understand import SESSION_FIELDS
from extproc.pool.deadline import Bounds
from extproc.prefix.approximate import BYTES_PER_BLOCK, DEFAULT_MAX_BLOCKS
from extproc.scheduling.profiles import PROFILES

# Of one worker and the next. Not 1: the admin port stands beside the gRPC port as shipped.
WORKER_PORTS_APART = 10


class TlsSettings(Section):
    """TLS of a port. With `client_ca_file` clients must present a certificate (mutual TLS)."""

    cert_file: str = Field(description="PEM certificate chain. The files are read anew when they change.")
    key_file: str = Field(description="PEM private key, without a password.")
    client_ca_file: str | None = Field(None, description="PEM CA; set: clients must present a certificate of it.")
    min_version: Literal["1.2", "1.3"] = Field(
        "1.2", description="Oldest version of TLS that is spoken. Envoy offers no newer one than 1.2 unless told."
    )

    @field_validator("min_version", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return str(value) if isinstance(value, float) else value  # 1.3 without quotes


class GrpcSettings(Section):
    listen: str = Field("127.0.0.1:9002", description="host:port for ext_proc, access log and health over gRPC.")
    tls: TlsSettings | None = Field(None, description="Unset: plaintext HTTP/2.")

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        split_host_port(value, lowest_port=0)
        return value


class AdminSettings(Section):
    listen: str = Field(
        "127.0.0.1:9003",
        description="host:port for the pages /metrics, /healthz, /readyz, /status, /decisions and /explain, for drains"
        " and for recommendations.",
    )
    tls: TlsSettings | None = Field(
        None,
        description="Unset: plaintext. With client_ca_file only /healthz and /readyz answer a client without a"
        " certificate: the probes of Kubernetes have none.",
    )
    token_file: str | None = Field(
        None,
        description="File with the bearer token that actions need (drains and /explain); read anew each time. Unset:"
        " the environment variable EXTPROC_ADMIN_TOKEN. Without a token actions are taken only where the port is a"
        " loopback one, or its clients have certificates.",
    )
    protect: Literal["actions", "all"] = Field(
        "actions",
        description="What needs the token: actions, or all pages but /healthz and /readyz.",
    )
    peer_ca_file: str | None = Field(
        None,
        description="PEM CA of the admin ports of autoscale.peers, which are asked over TLS when this one has it, with"
        " its certificate and its token_file; unset: the system's.",
    )

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        split_host_port(value, lowest_port=0)
        return value


class ExchangeSettings(Section):
    response: Literal["auto", "close", "echo"] = Field(
        "auto",
        description="Full duplex exchanges only: end our stream after the request phase, so that only the access log"
        " tells how requests end (close), or stay, and answer what Envoy sends of the response, to its end (echo)."
        " auto: close while an access log is received, else echo. Where Envoy sends the response's body, it is always"
        " echo: closing would lose a part of it.",
    )


class ScrapeSettings(Section):
    interval_s: Seconds = Field(0.5, description="Time between two scrapes of one endpoint.")
    timeout_s: Seconds = Field(2.0, description="Total time for one scrape; scrapes of one endpoint never overlap.")
    stale_after_s: Seconds = Field(3.0, description="A sample older than this counts as unknown.")
    max_backoff_s: Seconds = Field(5.0, description="Longest time between two scrapes of a failing endpoint.")
    max_bytes: int = Field(4 * 1024 * 1024, gt=0, description="Bytes read of one page; the rest is not looked at.")
    path: str = Field("/metrics", pattern=r"^/", description="Path of the metrics page.")
    scheme: Literal["http", "https"] = Field("http", description="How the metrics page is fetched.")
    ca_file: str | None = Field(None, description="PEM CA for https; unset: the system's.")
    verify: bool = Field(True, description="false: accept any certificate.")
    bearer_token_file: str | None = Field(
        None, description="Its content is sent as a bearer token; read anew each time."
    )

    @model_validator(mode="after")
    def _stale_outlives_a_scrape(self) -> ScrapeSettings:
        if self.stale_after_s < 2 * self.interval_s:
            raise ValueError(
                f"stale_after_s ({self.stale_after_s:g}) must be at least twice interval_s ({self.interval_s:g}),"
                " or every sample is stale before the next one comes; raise stale_after_s"
            )
        return self


class ModelsSettings(Section):
    """Which models the servers serve. They are asked by the scheme, CA, time-out and token of the scrapes."""

    enabled: bool = Field(True, description="Ask each server for its models: GET /v1/models on its serving port.")
    interval_s: Seconds = Field(10.0, description="Time between two such questions to one endpoint.")
    bearer_token_file: str | None = Field(
        None, description="As scrape.bearer_token_file, for servers with an API key; unset: the scrapes' is sent."
    )
    reject_unknown: bool = Field(
        True,
        description="Answer 404 to a request for a model of which every server says that it does not serve it; false:"
        " pass it on. For servers that load adapters on request, or that accept any name.",
    )


class DrainSettings(Section):
    """How servers are taken out. Of what runs there, (queue_s + prefill_s + max_tokens x token_interval_s) x margin is
    how long it may take, and the deadline of a drain for which none is given."""

    state_file: str | None = Field(
        None,
        description="Where drains that were asked for are kept, so that they survive a restart of the service; unset:"
        " they do not. Its directory must be writable.",
    )
    floor: int = Field(1, ge=1, description="No victim is proposed that would leave a pool with fewer ready servers.")
    server_requests: int | None = Field(
        None,
        ge=1,
        description="Requests that one server can run at once, as vLLM's --max-num-seqs: no victim is proposed while"
        " the others have no room for what runs; unset: that is judged by their KV caches and queues alone.",
    )
    max_tokens: int = Field(4096, ge=1, description="The longest answer that is waited for, in tokens.")
    token_interval_s: Seconds = Field(
        0.03,
        description="Time between two tokens of an answer at a full batch, 99th percentile. What a server's own metrics"
        " tell counts more, once they do.",
    )
    queue_s: float = Field(5.0, ge=0, allow_inf_nan=False, description="Longest wait in a server's queue.")
    prefill_s: float = Field(10.0, ge=0, allow_inf_nan=False, description="Longest time to compute a prompt.")
    margin: float = Field(1.2, ge=1, le=10, description="All this is multiplied by it; 1.2 to 1.5.")

    @field_validator("state_file")
    @classmethod
    def _state_file(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or value.endswith("/")):
            raise ValueError(f'"{value}" is not the name of a file; write one, as /var/lib/extproc/drains.json')
        return value

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.max_tokens, self.token_interval_s, self.queue_s, self.prefill_s, self.margin)


class ShedSettings(Section):
    """A rule of whom to turn away when all servers are full."""

    waiting: int = Field(
        ge=1, description="The rule applies while each server that could be picked has so many requests waiting."
    )
    priority: int = Field(
        0, description="Then requests of this priority, or a higher number (less important), are answered 429."
    )


class SchedulingSettings(Section):
    profile: str = Field("cache-aware", description="The rule that chooses; one of: " + ", ".join(PROFILES) + ".")
    profile_header: str | None = Field(
        None,
        min_length=1,
        description="A request header with which clients may choose the profile, as x-extproc-profile; unset: they may"
        " not. Where Envoy sends no headers (shape A) it must stand in its request_attributes.",
    )
    hosts: int = Field(3, ge=1, le=16, description="Hosts named per pick: the first choice and its fallbacks.")
    session_headers: tuple[str, ...] = Field(
        ("x-session-id",),
        description="Headers that name a conversation or user; the first that is not empty counts. Where Envoy sends no"
        " headers (shape A) each must stand in its request_attributes.",
    )
    session_fields: tuple[str, ...] = Field(
        SESSION_FIELDS, description="Top-level fields of the body that do, after the headers."
    )
    max_prefix_blocks: int = Field(
        DEFAULT_MAX_BLOCKS,
        ge=1000,
        description=f"Bound of what is remembered of prompts, over all servers of a pool; {BYTES_PER_BLOCK} B each.",
    )
    shed: tuple[ShedSettings, ...] = Field(
        (),
        description="Whom to turn away when all servers are full, the least important first; empty: nobody, requests"
        " wait in the servers' queues.",
    )
    priority_header: str | None = Field(
        None,
        min_length=1,
        description="A request header with its priority for shed, as x-request-priority; unset, or not in the request:"
        " the body's field priority. Where Envoy sends no headers (shape A) it must stand in its request_attributes.",
    )

    @field_validator("shed")
    @classmethod
    def _less_important_first(cls, value: tuple[ShedSettings, ...]) -> tuple[ShedSettings, ...]:
        for number, (first, second) in enumerate(pairwise(value), start=2):
            if second.waiting <= first.waiting or second.priority >= first.priority:
                raise ValueError(
                    f"rule {number} (waiting {second.waiting}, priority {second.priority}) has no effect or is out of"
                    f" order after rule {number - 1} (waiting {first.waiting}, priority {first.priority});"
                    " from rule to rule waiting must rise and priority fall"
                )
        return value

    @field_validator("profile_header", "priority_header")
    @classmethod
    def _lower_case(cls, value: str | None) -> str | None:
        return value if value is None else value.lower()

    @field_validator("profile")
    @classmethod
    def _profile(cls, value: str) -> str:
        if value not in PROFILES:
            raise PydanticCustomError("unknown_choice", 'unknown "{given}"', {"given": value, "choices": PROFILES})
        return value


class EndpointSettings(Section):
    """One server. In envoy.yaml these stand in the endpoint's `metadata.filter_metadata.extproc`."""

    address: str = Field(description="host:port; an IP, or a DNS name that is resolved again regularly.")
    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Share of traffic relative to its pool mates; 1 is normal."
    )
    model: tuple[str, ...] = Field(
        (),
        description="The models it serves: a name, several with commas between, or a list. It counts while the server"
        " itself does not tell.",
    )
    metrics_port: int | None = Field(None, ge=1, le=65535, description="Port of its metrics; unset: the serving port.")
    drained: bool = Field(False, description="true: it gets no new requests.")

    @field_validator("model", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return model_names(value)

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _ = split_host_port(value)
        if "%" in host:
            raise ValueError(f'"{value}": an IPv6 zone id cannot be routed to by Envoy; leave out "%..."')
        return value


class PoolSettings(Section):
    endpoints: tuple[EndpointSettings, ...] = Field(
        (), description="The pool's servers. In envoy.yaml they come from the cluster of the pool's name."
    )
    discovery: DiscoverySettings | None = Field(
        None, description="Where the servers come from instead, when they come and go; exactly one source in it."
    )
    scrape: ScrapeSettings | None = Field(None, description="Overrides the top-level section for this pool.")
    models: ModelsSettings | None = Field(None, description="Overrides the top-level section for this pool.")
    scheduling: SchedulingSettings | None = Field(None, description="Overrides the top-level section for this pool.")
    autoscale: AutoscaleSettings | None = Field(
        None, description="How many servers the pool should have is recommended (docs/autoscale.md); unset: it is not."
    )
    dns_family: Literal["auto", "v4_only", "v6_only", "v4_preferred", "all"] = Field(
        "all",
        description="Which addresses of a DNS name count, as Envoy's dns_lookup_family; auto: IPv6 if there is any,"
        " else IPv4. In envoy.yaml it comes from the cluster. It must be what Envoy does, or picks name hosts that it"
        " does not know.",
    )
    dns_refresh_s: Seconds = Field(5.0, description="Time between two resolutions of the pool's DNS names.")
    service_name: str | None = Field(
        None,
        min_length=1,
        description="The name under which Envoy asks for the pool's endpoints (EDS); unset: the pool's. In envoy.yaml"
        " it comes from the cluster's eds_cluster_config.",
    )

    @model_validator(mode="after")
    def _listed_or_discovered(self) -> PoolSettings:
        if self.endpoints and self.discovery is not None:
            raise ValueError("has endpoints and discovery; list the servers, or have them discovered: remove one")
        return self


class Settings(Section):
    grpc: GrpcSettings = Field(default_factory=lambda: GrpcSettings())
    admin: AdminSettings = Field(default_factory=lambda: AdminSettings())
    exchange: ExchangeSettings = Field(default_factory=lambda: ExchangeSettings())
    scrape: ScrapeSettings = Field(default_factory=lambda: ScrapeSettings())
    models: ModelsSettings = Field(default_factory=lambda: ModelsSettings())
    scheduling: SchedulingSettings = Field(default_factory=lambda: SchedulingSettings())
    drain: DrainSettings = Field(default_factory=lambda: DrainSettings())
    tracing: TracingSettings | None = Field(
        None, description="Where traces of decisions are sent (OpenTelemetry; docs/tracing.md); unset: there are none."
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that answer Envoy, for several cores (docs/workers.md): the first listens on the port of"
        f" grpc.listen, each other one {WORKER_PORTS_APART} ports on. All must be endpoints of Envoy's cluster.",
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Largest request body; the same number as in Envoy's buffer filter."
    )
    ready_wait_s: Seconds = Field(
        30.0, description="Not ready until an endpoint has given a usable sample, or for this long."
    )
    shutdown_notice_s: float = Field(
        5.0, ge=0, description="On SIGTERM: time between turning not-ready and closing the listener."
    )
    shutdown_grace_s: float = Field(30.0, ge=0, description="Then: longest wait for open streams to end.")
    pools: dict[str, PoolSettings] = Field(
        default_factory=dict, description="The pools by name. In envoy.yaml: overrides by the cluster's name."
    )
    default_pool: str | None = Field(None, description="Pool of requests whose route names none; unset: the only one.")

    @property
    def worker_ports(self) -> tuple[int, ...]:
        """Where each worker listens for gRPC; 0 is any free port. One past 65535 is for whoever opens it to refuse."""
        _, first = split_host_port(self.grpc.listen, lowest_port=0)
        apart = WORKER_PORTS_APART if first else 0
        return tuple(first + apart * number for number in range(self.workers))
