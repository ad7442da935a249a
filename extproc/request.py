"""What does Envoy hand us of one HTTP request, and what do we understand of it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from extproc.value import value


class Route(NamedTuple):
    """What the gateway's route says of its requests. None: nothing."""

    pool: str | None = None
    profile: str | None = None


ANY_ROUTE = Route()


@value
class RawRequest:
    """One request before anything of it is understood. Nothing here is validated: it is a stranger's input."""

    method: str = ""  # "" where the exchange shape does not tell
    path: str = ""  # with the query; "" where the exchange shape does not tell
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names; only those Envoy sent us
    body: bytes = b""
    route: Route = ANY_ROUTE  # the operator's, not the stranger's
    # Addresses the gateway restricts the pick to (`host:port`, or a bare IP); None: no restriction.
    subset: frozenset[str] | None = None


class ApiKind(StrEnum):
    """Which API of the server a request calls, told by its path."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    RERANK = "rerank"
    POOLING = "pooling"
    CLASSIFY = "classify"
    TOKENIZE = "tokenize"
    AUDIO = "audio"
    OTHER = "other"


class NoPrompt(StrEnum):
    """Why nothing is known of a request's prompt; it is then routed by load."""

    NO_BODY = "no_body"
    TOO_LARGE = "too_large"  # reading it would hold up all other requests
    ENCODED = "encoded"  # compressed in a way we do not undo
    UNPARSABLE = "unparsable"  # not a JSON object
    UNKNOWN_API = "unknown_api"  # its prompt is in a shape we do not know, or it has none
    EMPTY = "empty"  # a known API, but the prompt is missing, empty or of an odd type


@value
class InferenceRequest:
    """What is understood of a request. Its text and its identifiers are kept out of `repr`, and so out of logs.

    `prompt` is the canonical form: equal for bodies that differ only in key order, white space or escapes, and a chat
    that has grown begins with the bytes it had before. 256 bytes stand for about 64 tokens; token ids take 4 bytes.
    """

    kind: ApiKind
    model: str | None = None  # or the adapter: vLLM names both in `model`; None: not given
    prompt: bytes = field(default=b"", repr=False)  # empty when, and only when, `no_prompt` tells why
    no_prompt: NoPrompt | None = None
    cache_salt: str | None = field(default=None, repr=False)
    session_key: str | None = field(default=None, repr=False)  # never empty
    response_id: str | None = field(default=None, repr=False)  # the stored response it continues or asks for
    stores: bool = False  # the server may keep its response, for later requests to name
    own_response_id: str | None = field(default=None, repr=False)  # of that response, if the client chose it
    max_tokens: int | None = None  # upper bound on generated tokens; None: not given
    stream: bool = False
    priority: int = 0  # as for vLLM, a lower number is more important
    # Bytes of `prompt` that hold the last answer of the model which more input follows: who served the request before
    # this one generated them. Equal: there is none.
    generated_from: int = 0
    generated_to: int = 0
