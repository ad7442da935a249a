"""How are objects asked of the Kubernetes API?

Credentials, TLS and HTTP are kubernetes_asyncio's: in a pod its service account, whose token is read anew each minute
as it is rotated; else a kubeconfig with whatever it says of plugins and certificates. What we ask is plain: a list in
pages, and a watch from the version of that list. Everything that can go wrong is an `ApiError` in the operator's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson

from extproc.config.discovery_settings import KubernetesDiscoverySettings
from extproc.discovery.kubernetes.objects import Json

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_S = 5.0
_ANSWER_S = 15.0  # for a page of a list, and for a watch to begin
_PAGE = 50  # pods of some 20 KB: parsing a page must not hold up the requests of the data path
_MAX_LINE = 16 * 1024 * 1024  # one event; the API server's objects are of 1.5 MB at most
_OVERTIME_S = 10.0  # a watch that the server has not ended by then is taken for dead
_SAID = 300  # characters of an answer that go into a message


class ApiError(Exception):
    """The API gave no usable answer. `status` is HTTP's; None: there was no answer, or it made no sense."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def gone(self) -> bool:
        """The version that we know is too old: the list must be read again."""
        return self.status == 410


@dataclass(frozen=True, slots=True)
class Query:
    """Objects of one kind in one namespace (None: our own)."""

    group: str  # "" is the core group
    version: str
    plural: str
    label_selector: str = ""
    field_selector: str = ""
    namespace: str | None = None

    def path(self, namespace: str) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}"

    def __str__(self) -> str:
        of = ", ".join(text for text in (self.label_selector, self.field_selector) if text)
        return f"{self.plural}{f' ({of})' if of else ''}{f' in {self.namespace}' if self.namespace else ''}"


@dataclass(frozen=True, slots=True)
class Event:
    kind: str  # ADDED, MODIFIED, DELETED, BOOKMARK; ERROR is raised instead
    item: Json


class Reader(Protocol):
    """What `Mirror` needs of the API."""

    async def read(self, query: Query) -> tuple[list[Json], str]:
        """All objects, and the version of the list. Raises ApiError."""
        ...

    def watch(self, query: Query, version: str, for_s: float) -> AsyncGenerator[list[Event], None]:
        """What changed after `version`, in the pieces in which it came; the first is empty: the watch is open.

        It ends when the server ends it, which it is asked to do after `for_s`. Raises ApiError.
        """
        ...

    async def close(self) -> None: ...


class Connection:
    """To one API server, for one reader. It may be used again after `close`."""

    def __init__(self, settings: KubernetesDiscoverySettings, *, account: Path = _ACCOUNT) -> None:
        """`account` is where a pod's service account is mounted."""
        self._settings = settings
        self._account = account
        self._client: Any = None  # kubernetes_asyncio.client.ApiClient
        self._own_namespace = ""

    async def read(self, query: Query) -> tuple[list[Json], str]:
        try:
            return await self._pages(query, _PAGE)
        except ApiError as error:
            if not error.gone:
                raise
        # The rest of the pages is gone, as the list was long or the server busy: all in one, then.
        return await self._pages(query, None)

    async def watch(self, query: Query, version: str, for_s: float) -> AsyncGenerator[list[Event], None]:
        asked = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(for_s))),
        }
        async with self._get(query, asked, total_s=for_s + _OVERTIME_S) as response:
            yield []
            rest = b""
            async for piece in response.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_LINE:
                    raise ApiError(f"an event of {query.plural} is longer than {_MAX_LINE} bytes")
                yield [_event(line, query) for line in lines if line.strip()]
            if rest.strip():
                raise ApiError(f"the watch of {query.plural} broke off within an event")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _pages(self, query: Query, limit: int | None) -> tuple[list[Json], str]:
        items: list[Json] = []
        asked = {} if limit is None else {"limit": str(limit)}
        while True:
            async with self._get(query, asked, total_s=_ANSWER_S) as response:
                page = _json(await response.read(), query)
            found, meta = page.get("items"), page.get("metadata")
            if not isinstance(found, list | None) or not isinstance(meta, dict):
                raise ApiError(f"the answer is not a list of {query.plural}")
            items += [item for item in found or () if isinstance(item, dict)]
            following = meta.get("continue")
            if not following:
                return items, str(meta.get("resourceVersion", ""))
            asked["continue"] = str(following)

    @contextlib.asynccontextmanager
    async def _get(
        self, query: Query, asked: dict[str, str], *, total_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of status 200."""
        if self._client is None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self._client = await self._connect()
            except TimeoutError:
                raise ApiError("no credentials for the Kubernetes API: the kubeconfig's plugin does not end") from None
        client = self._client
        selectors = {"labelSelector": query.label_selector, "fieldSelector": query.field_selector}
        asked = asked | {name: text for name, text in selectors.items() if text}
        path = query.path(query.namespace or self._own_namespace)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                response = await client.call_api(
                    path,
                    "GET",
                    query_params=list(asked.items()),
                    header_params={"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=aiohttp.ClientTimeout(total=total_s, sock_connect=_CONNECT_S),
                )
            assert response is not None
            if response.status != 200:
                raise await self._refusal(query, response, "watch" if "watch" in asked else "list")
            yield response
        except TimeoutError:
            raise ApiError(f"no answer in time from {client.configuration.host}") from None
        except aiohttp.ClientPayloadError:
            raise ApiError(f"the connection to {client.configuration.host} broke off") from None
        except (aiohttp.ClientError, OSError) as error:
            await self.close()  # the CA or the address may have changed: both are read anew
            raise ApiError(f"{client.configuration.host}: {error or type(error).__name__}") from error
        finally:
            if response is not None:
                response.close()

    async def _refusal(self, query: Query, response: aiohttp.ClientResponse, verb: str) -> ApiError:
        said: object = None
        with contextlib.suppress(ValueError):
            said = orjson.loads(await response.content.read(64 * 1024))
        message = said.get("message") if isinstance(said, dict) else None
        if response.status == 401:
            await self.close()  # the credentials are read anew for the next try
        return refusal(
            query,
            verb,
            query.namespace or self._own_namespace,
            status=response.status,
            said=str(message or response.reason or "")[:_SAID],
            retry_after=response.headers.get("Retry-After", ""),
        )

    async def _connect(self) -> Any:
        """With the credentials as they are now."""
        client, config = load_client()
        configuration = client.Configuration()
        settings = self._settings
        try:
            if settings.kubeconfig is None and settings.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(
                    client_configuration=configuration,
                    token_filename=str(self._account / "token"),
                    cert_filename=str(self._account / "ca.crt"),
                )
                namespace = (self._account / "namespace").read_text().strip()
            else:
                loader = await config.load_kube_config(
                    config_file=settings.kubeconfig,
                    context=settings.context,
                    client_configuration=configuration,
                    persist_config=False,
                )
                namespace = loader.current_context["context"].get("namespace")
        except Exception as error:
            # Of any type: a plugin that fails, YAML that does not parse, fields that are missing.
            place = "the pod's service account" if settings.kubeconfig is None else f"kubeconfig {settings.kubeconfig}"
            raise ApiError(
                f"no credentials for the Kubernetes API: {place}: {error or type(error).__name__}"
            ) from error
        self._own_namespace = namespace or "default"
        return client.ApiClient(configuration=configuration)


def load_client() -> tuple[Any, Any]:
    """The modules `client` and `config` of kubernetes_asyncio. The first import takes a second and 40 MB: it is for
    those who need it, and before they serve.

    Raises:
        ValueError: the package is not installed.
    """
    try:
        return importlib.import_module("kubernetes_asyncio.client"), importlib.import_module(
            "kubernetes_asyncio.config"
        )
    except ImportError as error:
        raise ValueError(
            f"discovery.kubernetes needs the package kubernetes_asyncio ({error}); install it with: pip install"
            " 'vllm-extproc[kubernetes]'"
        ) from error


def refusal(query: Query, verb: str, namespace: str, *, status: int, said: str, retry_after: str = "") -> ApiError:
    """What a status other than 200 means, and its cure."""
    match status:
        case 401:
            text = f"the API server does not know us (401 {said}): the token is missing, expired or of another cluster"
        case 403:
            group = f' in apiGroup "{query.group}"'
            text = (
                f"may not {verb} {query.plural} in namespace {namespace}: the role needs verbs list and watch on"
                f" resource {query.plural}{group} (envoy/kubernetes/base/rbac.yaml has it); the API server says: {said}"
            )
        case 404:
            text = (
                f"the API server has no {query.plural} of {query.group}/{query.version}: is its CRD installed? ({said})"
            )
        case 410:
            text = f"the version of {query.plural} that we know is too old ({said})"
        case 429 | 503:
            text = f"the API server is busy ({status} {said})"
        case _:
            text = f"cannot {verb} {query.plural}: {status} {said}"
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    return ApiError(text, status=status, retry_after_s=seconds)


def _json(data: bytes, query: Query) -> Json:
    try:
        found = orjson.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(f"the answer for {query.plural} is not a JSON object: {data[:80]!r}")
    return found


def _event(line: bytes, query: Query) -> Event:
    found = _json(line, query)
    kind, item = found.get("type"), found.get("object")
    if not isinstance(kind, str) or not isinstance(item, dict):
        raise ApiError(f"an event of {query.plural} has no type or no object: {line[:80]!r}")
    if kind == "ERROR":
        code, said = item.get("code"), str(item.get("message", ""))[:_SAID]
        raise ApiError(f"the watch of {query.plural} ended: {said}", status=code if isinstance(code, int) else None)
    return Event(kind, item)
