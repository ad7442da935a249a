"""Which mistakes does `extproc check` know? One stable code for each, with why it matters and what cures it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from extproc.config.problems import Problem, Severity
from extproc.config.tree import Node


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of mistake. `why` is one sentence for the manual; `cure` is what a problem says unless it knows better."""

    name: str
    severity: Severity
    why: str
    cure: str


CODES: dict[str, Code] = {}


def define(name: str, severity: Severity, why: str, cure: str) -> Code:
    """Add a code. Raises ValueError for a name that is taken."""
    if name in CODES:
        raise ValueError(f"code {name} is defined twice")
    CODES[name] = Code(name, severity, why, cure)
    return CODES[name]


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake of a code at `field` under `node`; the line is that of the deepest part of it that is there."""

    code: Code
    node: Node | None  # None: the file as a whole
    message: str
    field: str = ""  # dotted, relative to the node; it may be missing from the file
    cure: str | None = None  # None: the code's own
    severity: Severity | None = None  # None: the code's own

    @property
    def path(self) -> str:
        above = self.node.path if self.node is not None else ""
        return ".".join(part for part in (above, self.field) if part)

    def problem(self, file: str) -> Problem:
        line = _deepest(self.node, self.field).line if self.node is not None else None
        return Problem(
            severity=self.severity or self.code.severity,
            file=file,
            line=line,
            field=shown_path(self.path),
            message=self.message,
            cure=self.code.cure if self.cure is None else self.cure,
            code=self.code.name,
        )


_WRAPPINGS = (".typed_config", ".typed_extension_config", ".filter_chains[0]")
_LONG_NAME = re.compile(r"\[envoy\.[a-z0-9_.]*?([a-z0-9_]+)\]")


def shown_path(path: str) -> str:
    """A path without what every path in an envoy.yaml has: the wrappings of extensions and their long names."""
    path = path.removeprefix("static_resources.")
    path = path.replace(".typed_extension_protocol_options.envoy.extensions.upstreams.http.v3", "")
    for wrapping in _WRAPPINGS:
        path = path.replace(wrapping, "")
    return _LONG_NAME.sub(r"[\1]", path).replace(".filters[http_connection_manager]", "")


def _deepest(node: Node, field: str) -> Node:
    for name in field.split(".") if field else ():
        child = node.get(name)
        if child is None:
            break
        node = child
    return node


ERROR, WARNING = Severity.ERROR, Severity.WARNING

FILE_UNREADABLE = define("file-unreadable", ERROR, "Nothing can be read.", "check the path and the permissions")
FILE_NOT_TEXT = define("file-not-text", ERROR, "A configuration is UTF-8 text.", "save it as UTF-8")
FILE_EMPTY = define(
    "file-empty", ERROR, "There is nothing to configure from.", "write an envoy.yaml, or at least `pools`"
)
FILE_NOT_A_MAPPING = define(
    "file-not-a-mapping",
    ERROR,
    "Both kinds of file are `key: value` at the top.",
    "start with `pools:` or with `node:`",
)
YAML_SYNTAX = define("yaml-syntax", ERROR, "The file is not one YAML document.", "correct its syntax")
YAML_DUPLICATE_KEY = define(
    "yaml-duplicate-key", ERROR, "Of two equal keys one is lost without a word.", "keep one of them"
)
YAML_BOOLEAN = define(
    "yaml-boolean",
    WARNING,
    "Envoy takes an unquoted y, n, yes, no, on or off for a boolean and refuses it where it wants text.",
    "put it in quotes, or write true or false",
)
YAML_MERGE = define(
    "yaml-merge", ERROR, "Envoy knows anchors and aliases, but no merge keys.", "write the merged fields out"
)
SETTING_UNKNOWN = define("setting-unknown", ERROR, "A misspelt setting would have no effect.", "remove it")
SETTING_VALUE = define("setting-value", ERROR, "The value is outside what the setting can be.", "")
SETTING_MISSING = define("setting-missing", ERROR, "The setting has no default.", "add it")
ENDPOINT_ADDRESS = define(
    "endpoint-address",
    ERROR,
    "An endpoint is named to Envoy as ip:port, so it needs an address of that form; a zone id has no meaning to Envoy.",
    "give it a socket_address with an IP or a DNS name, and a port",
)
ENDPOINT_DUPLICATE = define(
    "endpoint-duplicate", ERROR, "host:port is what tells endpoints apart.", "remove one, or raise its weight"
)
POOL_MISSING = define(
    "pool-missing",
    ERROR,
    "Without a pool there is nothing to route to.",
    "give the vLLM cluster the override_host load_balancing_policy, or list `pools`",
)
POOL_UNKNOWN = define(
    "pool-unknown", ERROR, "In envoy.yaml the clusters are the pools; settings cannot add one.", "name a cluster"
)
POOL_EMPTY = define("pool-empty", ERROR, "Every request to a pool without endpoints fails.", "add an endpoint")
POOL_DEFAULT = define(
    "pool-default",
    ERROR,
    "A request whose route names no pool goes to the default pool.",
    "set default_pool to the name of a pool",
)
AUTOSCALE_PROFILE = define(
    "autoscale-profile",
    ERROR,
    "A pool would scale by thresholds that nobody chose.",
    "write it with extproc calibrate, or remove the setting",
)
ENVOY_FIELD_UNKNOWN = define(
    "envoy-field-unknown",
    ERROR,
    "Envoy refuses a file with a field that it does not know. Reported where the name is nearly that of a known one.",
    "remove it",
)
ENVOY_FIELD_VALUE = define(
    "envoy-field-value", ERROR, "Envoy refuses a file with a value of the wrong kind.", "run envoy --mode validate"
)
