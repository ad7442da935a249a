"""How does a command speak with a running service's admin port?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

import typer

TIMEOUT_S = 10.0


class AwayError(Exception):
    """No service answers there, or something else does."""


class RefusedError(Exception):
    """The service says no; its words have the cure."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status  # HTTP


class Admin:
    """The admin port at a URL."""

    def __init__(self, url: str) -> None:
        """Raises typer.BadParameter for what is no http(s) URL; a bare host:port is one of http."""
        full = url if "://" in url else f"http://{url}"
        if not full.startswith(("http://", "https://")):
            raise typer.BadParameter(f'"{url}": write http://host:port', param_hint="--admin")
        self.url = full.rstrip("/")
        self._opener = build_opener(ProxyHandler({}))

    def drain(self, method: str, endpoint: str, query: Mapping[str, str]) -> Any:
        """Ask of one endpoint's drain."""
        return self.ask(method, f"/v1/endpoints/{quote(endpoint, safe='')}/drain", query)

    def ask(self, method: str, path: str, query: Mapping[str, str]) -> Any:
        """The answer. Raises AwayError, RefusedError."""
        question = f"?{urlencode(query, quote_via=quote)}" if query else ""
        try:
            with self._opener.open(Request(self.url + path + question, method=method), timeout=TIMEOUT_S) as response:
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
            reason = getattr(error, "reason", error)
            raise AwayError(
                f"no service at {self.url} ({getattr(reason, 'strerror', None) or reason}); is it running, and is that"
                " its admin.listen? Name another with --admin http://host:port"
            ) from None
        except ValueError:
            raise AwayError(f"what answers at {self.url} is not this service's admin port") from None
