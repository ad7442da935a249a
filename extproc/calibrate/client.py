"""What does the server under test say?"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from extproc.calibrate.errors import ClientError, OptionError, ServerError
from extproc.calibrate.sent import Sent
from extproc.calibrate.stream import StreamReader, error_message
from extproc.pool.sample import LoadSample
from extproc.telemetry.vllm_page import parse

_KEEPALIVE_S = 2.0  # below the 5 s after which vLLM closes an idle connection: a request must not meet that
_ASK_S = 10.0  # for what is no inference
_MOST_PAGE = 8 * 1024 * 1024
_TOO_MANY_FILES = (23, 24)  # ENFILE, EMFILE


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One served name."""

    id: str
    max_model_len: int | None = None
    adapter: bool = False  # of another model


def main_model(cards: list[ModelCard]) -> ModelCard:
    """The first that is no adapter; `cards` are one or more."""
    return next((card for card in cards if not card.adapter), cards[0])


def new_session(api_key: str | None, ca_file: str | None) -> aiohttp.ClientSession:
    """As many connections as requests are open. Raises OptionError for a CA file that cannot be used."""
    tls: ssl.SSLContext | bool = True
    if ca_file is not None:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise OptionError(f'--ca-file: cannot use "{ca_file}": {error}') from None
    headers = {"User-Agent": "extproc-calibrate"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=_KEEPALIVE_S),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
    )


class Server:
    """One vLLM server, or what claims to be one."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, metrics_url: str | None, clock: Callable[[], float]
    ) -> None:
        self.url = url
        self._session = session
        self._metrics_url = metrics_url or f"{url}/metrics"
        self._clock = clock
        self.behind_envoy = False  # it answers through an Envoy

    async def models(self) -> list[ModelCard]:
        """Raises ServerError, with the cure."""
        status, document, body = await self._get("/v1/models")
        if status in (401, 403):
            raise ServerError(f"{self.url} wants an API key (status {status}); give it with --api-key")
        entries = document.get("data") if isinstance(document, dict) else None
        cards = [_card(entry) for entry in entries] if isinstance(entries, list) else []
        if status != 200 or not cards or any(card is None for card in cards):
            said = f"status {status}" if status != 200 else "no list of models"
            raise ServerError(
                f"{self.url}/v1/models gives {said} ({error_message(body)[:120]}): that is no OpenAI API. Name the"
                " vLLM server itself, http://host:port"
            )
        return [card for card in cards if card is not None]

    async def version(self) -> str | None:
        """Of vLLM; None: it does not tell."""
        try:
            status, document, _ = await self._get("/version")
        except ServerError:
            return None
        version = document.get("version") if status == 200 and isinstance(document, dict) else None
        return version if isinstance(version, str) else None

    async def token_ids(self, text: str, model: str) -> list[int] | None:
        """How its tokenizer takes a text; None: it does not tell."""
        body = orjson.dumps({"model": model, "prompt": text, "add_special_tokens": False})
        try:
            async with (
                asyncio.timeout(_ASK_S),
                self._session.post(f"{self.url}/tokenize", data=body, headers=_JSON) as response,
            ):
                raw = await response.read()
                tokens = orjson.loads(raw).get("tokens") if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError):
            return None
        return tokens if isinstance(tokens, list) and all(isinstance(each, int) for each in tokens) else None

    async def sample(self, within_s: float = _ASK_S) -> LoadSample | str:
        """Its metrics page; a text: why there is none."""
        at_s = self._clock()
        try:
            async with asyncio.timeout(within_s), self._session.get(self._metrics_url) as response:
                if response.status != 200:
                    return f"{self._metrics_url}: status {response.status}"
                page = await response.content.read(_MOST_PAGE)
                while piece := await response.content.read(_MOST_PAGE):
                    page += piece
        except TimeoutError:
            return f"{self._metrics_url}: no page within {within_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{self._metrics_url}: {_reason(error)}"
        sample = parse(page, at_s)
        return sample if sample.usable else f"{self._metrics_url} tells nothing of a vLLM's load"

    async def ask(self, path: str, body: bytes, sent: Sent) -> None:
        """One streamed request, to its end; what comes is noted in `sent`, failures included. Raises ClientError if
        this process has no connections left."""
        sent.sent_s = self._clock()
        reader = StreamReader()
        try:
            async with self._session.post(self.url + path, data=body, headers=_JSON) as response:
                if response.status != 200:
                    sent.status = response.status
                    sent.error = error_message(await response.content.read(4096))
                    return
                async for piece in response.content.iter_any():
                    tokens = reader.feed(piece)
                    if tokens:
                        sent.got(self._clock(), tokens)
        except (aiohttp.ClientError, OSError) as error:
            if getattr(error, "errno", None) in _TOO_MANY_FILES:
                raise ClientError(
                    "this process may not open more connections; raise the limit of open files (ulimit -n)"
                ) from None
            sent.error = _reason(error)
        finally:
            self._end(reader, sent)

    def _end(self, reader: StreamReader, sent: Sent) -> None:
        sent.error = sent.error or reader.error
        sent.prompt_tokens, sent.output_tokens = reader.tokens("prompt_tokens"), reader.tokens("completion_tokens")
        sent.cached_tokens = reader.cached_tokens
        if reader.done or reader.finished:
            sent.end(self._clock())
        elif sent.error is None and not sent.abandoned:
            sent.error = "the stream ended before the answer did"

    async def _get(self, path: str) -> tuple[int, Any, bytes]:
        """Status, document (None: no JSON) and body. Raises ServerError if nobody answers."""
        try:
            async with asyncio.timeout(_ASK_S), self._session.get(self.url + path) as response:
                body = await response.read()
                self.behind_envoy = self.behind_envoy or response.headers.get("server") == "envoy"
                status = response.status
        except TimeoutError:
            raise ServerError(f"{self.url}: no answer within {_ASK_S:g} s") from None
        except aiohttp.InvalidURL:
            raise ServerError(f'"{self.url}" is no URL; write http://host:port') from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(
                f"no server at {self.url} ({_reason(error)}); is it running, and is that its port?"
            ) from None
        try:
            return status, orjson.loads(body), body
        except orjson.JSONDecodeError:
            return status, None, body


_JSON = {"Content-Type": "application/json"}


def _card(entry: object) -> ModelCard | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return None
    length = entry.get("max_model_len")
    return ModelCard(entry["id"], length if isinstance(length, int) and length > 0 else None, bool(entry.get("parent")))


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number else str(error.os_error)
    return f"{type(error).__name__}: {error}".rstrip(": ")[:200]
