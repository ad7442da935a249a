"""How does a command speak with a running service's admin port, and with what right?

What it shows (a token, a certificate) and whom it trusts (a CA) are options of each such command, or variables of the
environment. A redirect is not followed: the token would go along.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

import typer

from extproc.admin.token import TOKEN_VARIABLE, TokenError, checked_token, token_in

TIMEOUT_S = 10.0
DEFAULT = "http://127.0.0.1:9003"
_PANEL = "The admin port"
_VARIABLES = ("EXTPROC_ADMIN_TOKEN_FILE", "EXTPROC_ADMIN_CA", "EXTPROC_ADMIN_CERT", "EXTPROC_ADMIN_KEY")

AdminOption = Annotated[
    str, typer.Option("--admin", envvar="EXTPROC_ADMIN", help="The running service's admin address (admin.listen).")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="EXTPROC_ADMIN_TOKEN_FILE",
        metavar="FILE",
        help=f"File with the admin token. Default: the token in the variable {TOKEN_VARIABLE}, if it is set.",
        rich_help_panel=_PANEL,
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        envvar="EXTPROC_ADMIN_CA",
        metavar="FILE",
        help="PEM CA of an https:// admin port. Default: the system's.",
        rich_help_panel=_PANEL,
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar="EXTPROC_ADMIN_CERT",
        metavar="FILE",
        help="PEM certificate to show, where the port wants one.",
        rich_help_panel=_PANEL,
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key",
        envvar="EXTPROC_ADMIN_KEY",
        metavar="FILE",
        help="Its private key. Default: it is in the same file.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class Rights:
    """What a command shows, and whom it trusts."""

    token_file: Path | None = None  # None: the token of the environment, if there is one
    ca: Path | None = None  # None: the system's
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def of_environment(cls) -> Rights:
        return cls(*map(_path, _VARIABLES))

    def token(self) -> str | None:
        """Raises typer.BadParameter: what should be a token is none."""
        given = os.environ.get(TOKEN_VARIABLE)
        try:
            if self.token_file is not None:
                return token_in(self.token_file, "--token-file")
            return None if given is None else checked_token(given, TOKEN_VARIABLE)
        except TokenError as error:
            raise typer.BadParameter(str(error)) from None

    def environment(self) -> dict[str, str]:
        """The same rights as variables, for a command that is called."""
        given = zip(_VARIABLES, (self.token_file, self.ca, self.cert, self.key), strict=True)
        return {variable: str(path) for variable, path in given if path is not None}

    def tls(self) -> ssl.SSLContext:
        """Raises typer.BadParameter: a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise typer.BadParameter(
                f"{self.ca}: {error.strerror or error}; name a PEM file", param_hint="--ca"
            ) from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=lambda: b"")
            except OSError as error:
                hint = "--cert, --key"
                raise typer.BadParameter(f"{self.cert}: {error.strerror or error}", param_hint=hint) from None
        return context


class AwayError(Exception):
    """No service answers there, or something else does."""


class RefusedError(Exception):
    """The service says no; its words have the cure."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status  # HTTP


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class Admin:
    """The admin port at a URL."""

    def __init__(self, url: str, rights: Rights | None = None) -> None:
        """`rights`: None: those of the environment alone.

        Raises typer.BadParameter for what is no http(s) URL (a bare host:port is one of http), and for files that
        cannot be used.
        """
        full = url if "://" in url else f"http://{url}"
        if not full.startswith(("http://", "https://")):
            raise typer.BadParameter(f'"{url}": write http://host:port', param_hint="--admin")
        self.url = full.rstrip("/")
        rights = rights if rights is not None else Rights.of_environment()
        token = rights.token()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = self._opening(rights)

    def _opening(self, rights: Rights) -> OpenerDirector:
        tls = [HTTPSHandler(context=rights.tls())] if self.url.startswith("https://") else []
        return build_opener(ProxyHandler({}), _NoRedirect(), *tls)

    def drain(self, method: str, endpoint: str, query: Mapping[str, str]) -> Any:
        """Ask of one endpoint's drain."""
        return self.ask(method, f"/v1/endpoints/{quote(endpoint, safe='')}/drain", query)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """The answer. Raises AwayError, RefusedError."""
        question = f"?{urlencode(query, quote_via=quote)}" if query else ""
        request = Request(
            self.url + path + question, data=body, headers={**(headers or {}), **self._headers}, method=method
        )
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                return json.load(response)
        except HTTPError as error:
            with error:
                try:
                    message = str(json.load(error)["error"])
                except (ValueError, KeyError, TypeError, OSError):
                    message = f"status {error.code}: that is not this service's admin port, or an older version of it"
                    raise AwayError(f"at {self.url}: {message}") from None
            raise RefusedError(error.code, message) from None
        except (URLError, OSError) as error:
            raise AwayError(self._why(getattr(error, "reason", error))) from None
        except (ValueError, HTTPException):
            tls = "" if self.url.startswith("https://") else " (does it speak TLS? then write https://)"
            raise AwayError(f"what answers at {self.url} is not this service's admin port{tls}") from None

    def _why(self, reason: object) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {self.url} is not trusted ({reason.verify_message});"
                " give its CA with --ca FILE, and the name that it is for with --admin"
            )
        if isinstance(reason, ssl.SSLError):
            return (
                f"no TLS with {self.url} ({reason.reason or reason}); does it speak plain HTTP, or want a certificate"
                " (--cert, --key)?"
            )
        return (
            f"no service at {self.url} ({getattr(reason, 'strerror', None) or reason}); is it running, and is that"
            " its admin.listen? Name another with --admin http://host:port"
        )


def _path(variable: str) -> Path | None:
    found = os.environ.get(variable)
    return Path(found) if found else None
