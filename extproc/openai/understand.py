"""What does a request ask for?

Nothing here refuses a request: what is not understood is left out, with the reason, and the server is the judge. Only
top-level fields of the body count, so no prompt can pass for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from extproc.openai.body import read_object
from extproc.openai.canonical import canonical
from extproc.openai.multipart import is_form, model_in_form
from extproc.openai.paths import kind_of, response_id_in
from extproc.openai.priority import priority_in
from extproc.request import ApiKind, InferenceRequest, NoPrompt, RawRequest

SESSION_FIELDS = ("conversation", "prompt_cache_key", "user")

_WITH_PROMPT = frozenset({ApiKind.CHAT, ApiKind.COMPLETIONS, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.EMBEDDINGS})
_NOTHING_GENERATED = frozenset(
    {ApiKind.EMBEDDINGS, ApiKind.SCORE, ApiKind.RERANK, ApiKind.POOLING, ApiKind.CLASSIFY, ApiKind.TOKENIZE}
)
_LONGEST_ID = 256  # characters; a longer one of a client's choice is not remembered
_TOKEN_BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def understand(
    raw: RawRequest, *, session_headers: Iterable[str] = (), session_fields: Iterable[str] = SESSION_FIELDS
) -> InferenceRequest:
    """Read a request. Never raises.

    The session key is the first non-empty of `session_headers` (lower case), then of the body's `session_fields`: a
    text, or an object with a text `id`.
    """
    kind, key = ApiKind.OTHER, None
    try:
        kind = kind_of(raw.path)
        key = _first_text(raw.headers, session_headers)
        return _read(raw, kind, key, session_fields)
    except Exception:  # a fault of ours in reading must not cost a request its route
        return InferenceRequest(kind, session_key=key, no_prompt=NoPrompt.UNPARSABLE)


def _read(raw: RawRequest, kind: ApiKind, key: str | None, session_fields: Iterable[str]) -> InferenceRequest:
    stores = kind is ApiKind.RESPONSES
    response_id = response_id_in(raw.path) if stores else None
    if not raw.body:
        no_body = NoPrompt.NO_BODY
        return InferenceRequest(kind, session_key=key, response_id=response_id, stores=stores, no_prompt=no_body)
    content_type = raw.headers.get("content-type", "")
    if kind is ApiKind.AUDIO or is_form(content_type):
        model = _printable(model_in_form(raw.body, content_type))
        return InferenceRequest(kind, model, session_key=key, no_prompt=NoPrompt.UNKNOWN_API)
    body = read_object(raw.body, raw.headers)
    if isinstance(body, NoPrompt):
        return InferenceRequest(kind, session_key=key, response_id=response_id, stores=stores, no_prompt=body)
    if not raw.path:
        kind = _kind_by_fields(body)
    prompt = canonical(kind, body)
    no_prompt = None
    if not prompt.text:
        no_prompt = NoPrompt.EMPTY if kind in _WITH_PROMPT else NoPrompt.UNKNOWN_API
    return InferenceRequest(
        kind=kind,
        model=_text(body.get("model")),
        prompt=prompt.text,
        no_prompt=no_prompt,
        cache_salt=_text(body.get("cache_salt")),
        session_key=key or _first_text(body, session_fields),
        response_id=_text(body.get("previous_response_id")) or response_id,
        stores=stores and body.get("store") is not False,
        own_response_id=_own_id(body) if stores else None,
        max_tokens=0 if kind in _NOTHING_GENERATED else _token_bound(body),
        stream=body.get("stream") is True,
        priority=priority_in(body),
        generated_from=prompt.generated_from,
        generated_to=prompt.generated_to,
    )


def _kind_by_fields(body: Mapping[str, Any]) -> ApiKind:
    """For exchange shapes that do not tell the path."""
    if "messages" in body:
        return ApiKind.CHAT
    return ApiKind.COMPLETIONS if "prompt" in body else ApiKind.OTHER


def _text(value: object) -> str | None:
    return _printable(value) if isinstance(value, str) and value else None


def _own_id(body: Mapping[str, Any]) -> str | None:
    """vLLM takes `request_id` of a Responses request for the id of its response."""
    own = _text(body.get("request_id"))
    return own if own is not None and len(own) <= _LONGEST_ID else None


def _printable(text: str | None) -> str | None:
    """Halves of surrogate pairs are escaped: they would raise wherever the text is written out."""
    return text if text is None or text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _first_text(fields: Mapping[str, Any], names: Iterable[str]) -> str | None:
    for name in names:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        text = _text(value)
        if text is not None:
            return text
    return None


def _token_bound(body: Mapping[str, Any]) -> int | None:
    for name in _TOKEN_BOUNDS:
        value = body.get(name)
        if type(value) is int and value >= 0:
            return value
    return None
