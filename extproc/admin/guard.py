"""May this request of the admin port be answered?

Reads (GET and HEAD) are open, unless all pages are protected; all else is an action: it needs the token where one is
set, else a certificate of the client CA, else that the port is a loopback one. `/explain` is an action too: it costs
what a pick costs, and tells which servers hold a prompt. A server may always drain itself: the address that its
connection comes from says that it is the one. The two probes are always open.

Loopback is no wall against web pages that a person on this machine looks at. So an action must not come from a page
(`Origin`, `Sec-Fetch-Site`), nor as a form; and what is asked of a loopback port must have an IP address or localhost
as its `Host`: a page whose name was made to resolve to this machine (DNS rebinding) says its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from extproc.admin.token import TOKEN_VARIABLE, TokenError, checked_token, token_in
from extproc.config.settings import AdminSettings
from extproc.endpoint import split_host_port

PROBES = frozenset({"/healthz", "/readyz"})
_READS = frozenset({"GET", "HEAD"})
_FORMS = frozenset({"", "text/plain", "application/x-www-form-urlencoded"})  # what a page may send unasked
_ALLOW = (
    "set admin.token_file to a file with a token (or the service's variable EXTPROC_ADMIN_TOKEN) and send it as"
    " `Authorization: Bearer TOKEN` (extproc's commands: --token-file), or have the port listen on 127.0.0.1"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request counts."""

    method: str
    path: str
    headers: Mapping[str, str]  # a case-insensitive one
    has_body: bool
    certified: bool  # it came with a certificate of the client CA
    of_itself: bool  # a server asks for its own drain


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and with which status."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one admin port."""

    loopback: bool  # only this machine can reach it
    tokens: Callable[[], str | None]  # the token of now, None: none is set; raises TokenError
    protects_all: bool = False
    wants_certificates: bool = False

    @classmethod
    def of(cls, settings: AdminSettings, environment: Mapping[str, str] = os.environ) -> Guard:
        """Raises TokenError: what should be a token at the start is none."""
        host, _ = split_host_port(settings.listen, lowest_port=0)
        given = environment.get(TOKEN_VARIABLE)
        file = settings.token_file
        if file is None and given is not None:
            checked_token(given, TOKEN_VARIABLE)
        made = cls(
            loopback=is_loopback(host),
            tokens=(lambda: given) if file is None else (lambda: token_in(Path(file), "admin.token_file")),
            protects_all=settings.protect == "all",
            wants_certificates=settings.tls is not None and settings.tls.client_ca_file is not None,
        )
        if made.tokens() is None and made.protects_all and not made.wants_certificates:
            raise TokenError(
                f"admin.protect: all, and there is no token; set admin.token_file, or the variable {TOKEN_VARIABLE}"
            )
        return made

    @property
    def nobody_may_act(self) -> bool:
        """Whether there is no way to be allowed an action, but for a server that drains itself."""
        return not self.loopback and not self.wants_certificates and self.tokens() is None

    def judge(self, asked: Asked) -> Refusal | None:
        """None: it may be answered."""
        if asked.path in PROBES and asked.method in _READS:
            return None
        if self.wants_certificates and not asked.certified:
            return Refusal(403, "a client certificate of admin.tls.client_ca_file is needed (extproc: --cert, --key)")
        if self.loopback and (named := _foreign_name(asked.headers.get("Host"))) is not None:
            return Refusal(403, f"Host is {named[:100]!r}; write the address: http://127.0.0.1:PORT, or localhost")
        action = asked.method not in _READS
        if action and (refusal := _from_a_page(asked)) is not None:
            return refusal
        if not (action or self.protects_all) or asked.of_itself:
            return None
        try:
            token = self.tokens()
        except TokenError as error:
            return Refusal(503, f"who asks cannot be checked: {error}")
        if token is not None:
            return self._with_token(token, asked.headers.get("Authorization"))
        if self.loopback or self.wants_certificates:
            return None
        return Refusal(403, f"actions are not taken on a port that others can reach, without a token: {_ALLOW}")

    @staticmethod
    def _with_token(token: str, given: str | None) -> Refusal | None:
        if given is None:
            return Refusal(
                401, "this needs the admin token: send `Authorization: Bearer TOKEN` (extproc: --token-file)"
            )
        scheme, _, credentials = given.partition(" ")
        same = hmac.compare_digest(credentials.strip().encode("utf-8", "surrogateescape"), token.encode())
        if scheme.lower() == "bearer" and same:
            return None
        return Refusal(403, "that is not the admin token of this service (admin.token_file, EXTPROC_ADMIN_TOKEN)")


LOCAL = Guard(loopback=True, tokens=lambda: None)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a port on it. A name other than localhost is taken to be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "ip6-localhost", "ip6-loopback")


def same_address(one: str | None, other: str) -> bool:
    """Whether two texts are the same IP address; ::ffff:10.0.0.1 is 10.0.0.1."""
    if one is None:
        return False
    try:
        return _plain(one) == _plain(other)
    except ValueError:
        return False


def _from_a_page(asked: Asked) -> Refusal | None:
    for name in ("Origin", "Sec-Fetch-Site"):
        if name in asked.headers:
            return Refusal(403, f"this is not for browsers: the request has the header {name}")
    kind = asked.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if asked.has_body and kind in _FORMS:
        what = f"a body of type {kind}" if kind else "a body without its type"
        return Refusal(415, f"{what} is not taken; send `Content-Type: application/json`")
    return None


def _foreign_name(host: str | None) -> str | None:
    """The name in a Host header that is neither an address nor localhost."""
    if not host:
        return None  # no browser leaves it out
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    try:
        ipaddress.ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return None if name.lower().rstrip(".") == "localhost" else name
    return None


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
