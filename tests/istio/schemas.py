"""What do Istio and the Gateway API take? The fields of their custom resources that we use or could mistype, strictly.

After the published definitions: Istio 1.28 (networking.istio.io, security.istio.io), Gateway API 1.4 and its
Inference Extension 1.5. What goes to Envoy unchanged, the values of an EnvoyFilter's patches, is left to Envoy itself.
"""

from __future__ import annotations

from typing import Any

import jsonschema

from tests.support.strict_schema import COUNT, SWITCH, TEXT, TEXTS, Json, resource, strict


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _one_of(*values: str) -> Json:
    return {"enum": list(values)}


_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(h|m|s|ms))+$"}
_NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_METADATA = strict(("name", "namespace"), name=_NAME, namespace=_NAME, labels=TEXTS, annotations=TEXTS)


# networking.istio.io and security.istio.io

_FILTER_CHAIN = strict(
    name=TEXT,
    sni=TEXT,
    applicationProtocols=TEXT,
    transportProtocol=TEXT,
    destinationPort=_PORT,
    filter=strict(name=TEXT, subFilter=strict(name=TEXT)),
)
_PATCH_MATCH = strict(
    context=_one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"),
    proxy=strict(proxyVersion=TEXT, metadata=TEXTS),
    listener=strict(name=TEXT, portNumber=_PORT, portName=TEXT, filterChain=_FILTER_CHAIN, listenerFilter=TEXT),
    routeConfiguration=strict(
        name=TEXT,
        portNumber=_PORT,
        portName=TEXT,
        gateway=TEXT,
        vhost=strict(
            name=TEXT,
            domainName=TEXT,
            route=strict(name=TEXT, action=_one_of("ANY", "ROUTE", "REDIRECT", "DIRECT_RESPONSE")),
        ),
    ),
    cluster=strict(name=TEXT, service=TEXT, subset=TEXT, portNumber=_PORT),
) | {"not": {"anyOf": [{"required": ["listener", kind]} for kind in ("routeConfiguration", "cluster")]}}
_ENVOY_FILTER = strict(
    ("configPatches",),
    workloadSelector=strict(labels=TEXTS),
    targetRefs=_list(strict(("kind", "name"), group={"type": "string"}, kind=TEXT, name=TEXT), maxItems=16),
    priority={"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    configPatches=_list(
        strict(
            ("applyTo", "match", "patch"),
            applyTo=_one_of(
                *("LISTENER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION", "VIRTUAL_HOST"),
                *("HTTP_ROUTE", "CLUSTER", "EXTENSION_CONFIG", "BOOTSTRAP", "LISTENER_FILTER"),
            ),
            match=_PATCH_MATCH,
            patch=strict(
                ("operation",),
                operation=_one_of(
                    *("MERGE", "ADD", "REMOVE", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST", "REPLACE")
                ),
                value={"type": "object"},
                filterClass=_one_of("UNSPECIFIED", "AUTHN", "AUTHZ", "STATS"),
            ),
        ),
        minItems=1,
    ),
)
_TLS = strict(
    mode=_one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"),
    clientCertificate=TEXT,
    privateKey=TEXT,
    caCertificates=TEXT,
    caCrl=TEXT,
    credentialName=TEXT,
    subjectAltNames=_list(TEXT),
    sni=TEXT,
    insecureSkipVerify=SWITCH,
)
_BALANCER = strict(
    simple=_one_of(*("UNSPECIFIED", "RANDOM", "PASSTHROUGH", "ROUND_ROBIN", "LEAST_REQUEST", "LEAST_CONN"))
)
_POOL = strict(
    tcp=strict(maxConnections=COUNT, connectTimeout=_DURATION, idleTimeout=_DURATION),
    http=strict(
        http1MaxPendingRequests=COUNT,
        http2MaxRequests=COUNT,
        maxRequestsPerConnection=COUNT,
        maxRetries=COUNT,
        idleTimeout=_DURATION,
        h2UpgradePolicy=_one_of("DEFAULT", "DO_NOT_UPGRADE", "UPGRADE"),
        useClientProtocol=SWITCH,
        maxConcurrentStreams=COUNT,
    ),
)
_POLICY: Json = {"loadBalancer": _BALANCER, "connectionPool": _POOL, "tls": _TLS}
_DESTINATION_RULE = strict(
    ("host",),
    host=TEXT,
    exportTo=_list(TEXT),
    trafficPolicy=strict(
        **_POLICY, portLevelSettings=_list(strict(("port",), port=strict(("number",), number=_PORT), **_POLICY))
    ),
)
_MATCH_TEXT = strict(exact=TEXT, prefix=TEXT, regex=TEXT) | {"minProperties": 1, "maxProperties": 1}
_VIRTUAL_SERVICE = strict(
    ("hosts", "http"),
    hosts=_list(TEXT, minItems=1),
    gateways=_list(TEXT),
    exportTo=_list(TEXT),
    http=_list(
        strict(
            ("route",),
            name=TEXT,
            match=_list(
                strict(
                    name=TEXT,
                    uri=_MATCH_TEXT,
                    method=_MATCH_TEXT,
                    authority=_MATCH_TEXT,
                    headers={"type": "object", "additionalProperties": _MATCH_TEXT},
                    port=_PORT,
                )
            ),
            route=_list(
                strict(
                    ("destination",),
                    destination=strict(("host",), host=TEXT, subset=TEXT, port=strict(number=_PORT)),
                    weight=COUNT,
                )
            ),
            timeout=_DURATION,
            retries=strict(attempts=COUNT, perTryTimeout=_DURATION, retryOn=TEXT),
        ),
        minItems=1,
    ),
)
_ISTIO_GATEWAY = strict(
    ("selector", "servers"),
    selector=TEXTS,
    servers=_list(
        strict(
            ("port", "hosts"),
            name=TEXT,
            port=strict(
                ("number", "protocol", "name"),
                number=_PORT,
                name=TEXT,
                protocol=_one_of("HTTP", "HTTPS", "GRPC", "HTTP2", "MONGO", "TCP", "TLS"),
            ),
            hosts=_list(TEXT, minItems=1),
            tls=strict(mode=TEXT, credentialName=TEXT, httpsRedirect=SWITCH),
        ),
        minItems=1,
    ),
)
_SERVICE_ENTRY = strict(
    ("hosts", "ports"),
    hosts=_list(TEXT, minItems=1, maxItems=256),
    location=_one_of("MESH_EXTERNAL", "MESH_INTERNAL"),
    resolution=_one_of("NONE", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"),
    exportTo=_list(TEXT),
    ports=_list(strict(("number", "name"), number=_PORT, name=TEXT, protocol=TEXT, targetPort=_PORT), maxItems=256),
    endpoints=_list(
        strict(address=TEXT, ports={"type": "object", "additionalProperties": _PORT}, labels=TEXTS, weight=COUNT),
        maxItems=4096,
    ),
)
_MTLS = strict(("mode",), mode=_one_of("UNSET", "DISABLE", "PERMISSIVE", "STRICT"))
_PEER_AUTHENTICATION = strict(
    selector=strict(("matchLabels",), matchLabels=TEXTS),
    mtls=_MTLS,
    portLevelMtls={
        "type": "object",
        "minProperties": 1,
        "patternProperties": {r"^[1-9]\d{0,4}$": _MTLS},
        "additionalProperties": False,
    },
) | {"dependentRequired": {"portLevelMtls": ["selector"]}}

# gateway.networking.k8s.io and inference.networking.k8s.io

_GROUP = {"type": "string", "maxLength": 253}
_KUBERNETES_GATEWAY = strict(
    ("gatewayClassName", "listeners"),
    gatewayClassName=_NAME,
    listeners=_list(
        strict(
            ("name", "port", "protocol"),
            name=_NAME,
            hostname=TEXT,
            port=_PORT,
            protocol=TEXT,
            allowedRoutes=strict(namespaces=strict(from_=_one_of("All", "Selector", "Same", "None"))),
        ),
        minItems=1,
        maxItems=64,
    ),
)
_GATEWAY_DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_HTTP_ROUTE = strict(
    parentRefs=_list(
        strict(("name",), group=_GROUP, kind=TEXT, namespace=_NAME, name=_NAME, sectionName=_NAME, port=_PORT),
        maxItems=32,
    ),
    hostnames=_list(TEXT, maxItems=16),
    rules=_list(
        strict(
            name=_NAME,
            matches=_list(
                strict(path=strict(type=_one_of("Exact", "PathPrefix", "RegularExpression"), value=TEXT)),
                maxItems=64,
            ),
            backendRefs=_list(
                strict(
                    ("name",),
                    group=_GROUP,
                    kind=TEXT,
                    namespace=_NAME,
                    name=_NAME,
                    port=_PORT,
                    weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
                ),
                maxItems=16,
            ),
            timeouts=strict(request=_GATEWAY_DURATION, backendRequest=_GATEWAY_DURATION),
        ),
        minItems=1,
        maxItems=16,
    ),
)
_NUMBERED = strict(("number",), number=_PORT)
_INFERENCE_POOL = strict(
    ("selector", "targetPorts"),
    selector=strict(
        ("matchLabels",),
        matchLabels={
            "type": "object",
            "maxProperties": 64,
            "additionalProperties": {"type": "string", "maxLength": 63},
        },
    ),
    targetPorts=_list(_NUMBERED, minItems=1, maxItems=8, uniqueItems=True),
    appProtocol=_one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=strict(
        ("name",),
        group=_GROUP,
        kind={"type": "string", "minLength": 1, "maxLength": 63},
        name=_NAME,
        port=_NUMBERED,
        failureMode=_one_of("FailOpen", "FailClose"),
    )
    # A Service has ports, so one must be named.
    | {"if": {"properties": {"kind": {"const": "Service"}}}, "then": {"required": ["port"]}},
)

SCHEMAS: dict[tuple[str, str], Json] = {
    (version, kind): resource(version, kind, spec, _METADATA)
    for version, kind, spec in (
        ("networking.istio.io/v1alpha3", "EnvoyFilter", _ENVOY_FILTER),
        ("networking.istio.io/v1", "DestinationRule", _DESTINATION_RULE),
        ("networking.istio.io/v1", "VirtualService", _VIRTUAL_SERVICE),
        ("networking.istio.io/v1", "Gateway", _ISTIO_GATEWAY),
        ("networking.istio.io/v1", "ServiceEntry", _SERVICE_ENTRY),
        ("security.istio.io/v1", "PeerAuthentication", _PEER_AUTHENTICATION),
        ("gateway.networking.k8s.io/v1", "Gateway", _KUBERNETES_GATEWAY),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", _HTTP_ROUTE),
        ("inference.networking.k8s.io/v1", "InferencePool", _INFERENCE_POOL),
    )
}


def validate(item: Json) -> None:
    """Raises jsonschema.ValidationError, or KeyError for another kind."""
    jsonschema.validate(item, SCHEMAS[item["apiVersion"], item["kind"]], jsonschema.Draft202012Validator)
