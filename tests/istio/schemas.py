"""What do Istio and the Gateway API take? The fields of their custom resources that we use or could mistype, strictly.

After the published definitions: Istio 1.28 (networking.istio.io, security.istio.io), Gateway API 1.4 and its
Inference Extension 1.5. What goes to Envoy unchanged, the values of an EnvoyFilter's patches, is left to Envoy itself.
"""

from __future__ import annotations

from typing import Any

import jsonschema

Json = dict[str, Any]


def _object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {
        "type": "object",
        "properties": {name.rstrip("_"): value for name, value in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _one_of(*values: str) -> Json:
    return {"enum": list(values)}


_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_SWITCH = {"type": "boolean"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(h|m|s|ms))+$"}
_NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_METADATA = _object(("name", "namespace"), name=_NAME, namespace=_NAME, labels=_TEXTS, annotations=_TEXTS)


def _resource(version: str, kind: str, spec: Json) -> Json:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )


# networking.istio.io and security.istio.io

_FILTER_CHAIN = _object(
    name=_TEXT,
    sni=_TEXT,
    applicationProtocols=_TEXT,
    transportProtocol=_TEXT,
    destinationPort=_PORT,
    filter=_object(name=_TEXT, subFilter=_object(name=_TEXT)),
)
_PATCH_MATCH = _object(
    context=_one_of("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"),
    proxy=_object(proxyVersion=_TEXT, metadata=_TEXTS),
    listener=_object(name=_TEXT, portNumber=_PORT, portName=_TEXT, filterChain=_FILTER_CHAIN, listenerFilter=_TEXT),
    routeConfiguration=_object(
        name=_TEXT,
        portNumber=_PORT,
        portName=_TEXT,
        gateway=_TEXT,
        vhost=_object(
            name=_TEXT,
            domainName=_TEXT,
            route=_object(name=_TEXT, action=_one_of("ANY", "ROUTE", "REDIRECT", "DIRECT_RESPONSE")),
        ),
    ),
    cluster=_object(name=_TEXT, service=_TEXT, subset=_TEXT, portNumber=_PORT),
) | {"not": {"anyOf": [{"required": ["listener", kind]} for kind in ("routeConfiguration", "cluster")]}}
_ENVOY_FILTER = _object(
    ("configPatches",),
    workloadSelector=_object(labels=_TEXTS),
    targetRefs=_list(_object(("kind", "name"), group={"type": "string"}, kind=_TEXT, name=_TEXT), maxItems=16),
    priority={"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    configPatches=_list(
        _object(
            ("applyTo", "match", "patch"),
            applyTo=_one_of(
                *("LISTENER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION", "VIRTUAL_HOST"),
                *("HTTP_ROUTE", "CLUSTER", "EXTENSION_CONFIG", "BOOTSTRAP", "LISTENER_FILTER"),
            ),
            match=_PATCH_MATCH,
            patch=_object(
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
_TLS = _object(
    mode=_one_of("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"),
    clientCertificate=_TEXT,
    privateKey=_TEXT,
    caCertificates=_TEXT,
    caCrl=_TEXT,
    credentialName=_TEXT,
    subjectAltNames=_list(_TEXT),
    sni=_TEXT,
    insecureSkipVerify=_SWITCH,
)
_BALANCER = _object(
    simple=_one_of(*("UNSPECIFIED", "RANDOM", "PASSTHROUGH", "ROUND_ROBIN", "LEAST_REQUEST", "LEAST_CONN"))
)
_POOL = _object(
    tcp=_object(maxConnections=_COUNT, connectTimeout=_DURATION, idleTimeout=_DURATION),
    http=_object(
        http1MaxPendingRequests=_COUNT,
        http2MaxRequests=_COUNT,
        maxRequestsPerConnection=_COUNT,
        maxRetries=_COUNT,
        idleTimeout=_DURATION,
        h2UpgradePolicy=_one_of("DEFAULT", "DO_NOT_UPGRADE", "UPGRADE"),
        useClientProtocol=_SWITCH,
        maxConcurrentStreams=_COUNT,
    ),
)
_POLICY: Json = {"loadBalancer": _BALANCER, "connectionPool": _POOL, "tls": _TLS}
_DESTINATION_RULE = _object(
    ("host",),
    host=_TEXT,
    exportTo=_list(_TEXT),
    trafficPolicy=_object(
        **_POLICY, portLevelSettings=_list(_object(("port",), port=_object(("number",), number=_PORT), **_POLICY))
    ),
)
_MATCH_TEXT = _object(exact=_TEXT, prefix=_TEXT, regex=_TEXT) | {"minProperties": 1, "maxProperties": 1}
_VIRTUAL_SERVICE = _object(
    ("hosts", "http"),
    hosts=_list(_TEXT, minItems=1),
    gateways=_list(_TEXT),
    exportTo=_list(_TEXT),
    http=_list(
        _object(
            ("route",),
            name=_TEXT,
            match=_list(
                _object(
                    name=_TEXT,
                    uri=_MATCH_TEXT,
                    method=_MATCH_TEXT,
                    authority=_MATCH_TEXT,
                    headers={"type": "object", "additionalProperties": _MATCH_TEXT},
                    port=_PORT,
                )
            ),
            route=_list(
                _object(
                    ("destination",),
                    destination=_object(("host",), host=_TEXT, subset=_TEXT, port=_object(number=_PORT)),
                    weight=_COUNT,
                )
            ),
            timeout=_DURATION,
            retries=_object(attempts=_COUNT, perTryTimeout=_DURATION, retryOn=_TEXT),
        ),
        minItems=1,
    ),
)
_ISTIO_GATEWAY = _object(
    ("selector", "servers"),
    selector=_TEXTS,
    servers=_list(
        _object(
            ("port", "hosts"),
            name=_TEXT,
            port=_object(
                ("number", "protocol", "name"),
                number=_PORT,
                name=_TEXT,
                protocol=_one_of("HTTP", "HTTPS", "GRPC", "HTTP2", "MONGO", "TCP", "TLS"),
            ),
            hosts=_list(_TEXT, minItems=1),
            tls=_object(mode=_TEXT, credentialName=_TEXT, httpsRedirect=_SWITCH),
        ),
        minItems=1,
    ),
)
_SERVICE_ENTRY = _object(
    ("hosts", "ports"),
    hosts=_list(_TEXT, minItems=1, maxItems=256),
    location=_one_of("MESH_EXTERNAL", "MESH_INTERNAL"),
    resolution=_one_of("NONE", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"),
    exportTo=_list(_TEXT),
    ports=_list(_object(("number", "name"), number=_PORT, name=_TEXT, protocol=_TEXT, targetPort=_PORT), maxItems=256),
    endpoints=_list(
        _object(address=_TEXT, ports={"type": "object", "additionalProperties": _PORT}, labels=_TEXTS, weight=_COUNT),
        maxItems=4096,
    ),
)
_MTLS = _object(("mode",), mode=_one_of("UNSET", "DISABLE", "PERMISSIVE", "STRICT"))
_PEER_AUTHENTICATION = _object(
    selector=_object(("matchLabels",), matchLabels=_TEXTS),
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
_KUBERNETES_GATEWAY = _object(
    ("gatewayClassName", "listeners"),
    gatewayClassName=_NAME,
    listeners=_list(
        _object(
            ("name", "port", "protocol"),
            name=_NAME,
            hostname=_TEXT,
            port=_PORT,
            protocol=_TEXT,
            allowedRoutes=_object(namespaces=_object(from_=_one_of("All", "Selector", "Same", "None"))),
        ),
        minItems=1,
        maxItems=64,
    ),
)
_GATEWAY_DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_HTTP_ROUTE = _object(
    parentRefs=_list(
        _object(("name",), group=_GROUP, kind=_TEXT, namespace=_NAME, name=_NAME, sectionName=_NAME, port=_PORT),
        maxItems=32,
    ),
    hostnames=_list(_TEXT, maxItems=16),
    rules=_list(
        _object(
            name=_NAME,
            matches=_list(
                _object(path=_object(type=_one_of("Exact", "PathPrefix", "RegularExpression"), value=_TEXT)),
                maxItems=64,
            ),
            backendRefs=_list(
                _object(
                    ("name",),
                    group=_GROUP,
                    kind=_TEXT,
                    namespace=_NAME,
                    name=_NAME,
                    port=_PORT,
                    weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
                ),
                maxItems=16,
            ),
            timeouts=_object(request=_GATEWAY_DURATION, backendRequest=_GATEWAY_DURATION),
        ),
        minItems=1,
        maxItems=16,
    ),
)
_NUMBERED = _object(("number",), number=_PORT)
_INFERENCE_POOL = _object(
    ("selector", "targetPorts"),
    selector=_object(
        ("matchLabels",),
        matchLabels={
            "type": "object",
            "maxProperties": 64,
            "additionalProperties": {"type": "string", "maxLength": 63},
        },
    ),
    targetPorts=_list(_NUMBERED, minItems=1, maxItems=8, uniqueItems=True),
    appProtocol=_one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=_object(
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
    (version, kind): _resource(version, kind, spec)
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
