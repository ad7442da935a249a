"""How do OpenAI requests and answers look on the wire of a vLLM server?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Literal

from extproc.sim.text import render_chat, render_prompt

Kind = Literal["chat", "completion"]
_VOCABULARY = 131_071
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class ApiError(Exception):
    """An answer other than 200, in vLLM's JSON shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, type_: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        error_type = type_ or _TYPES.get(status) or HTTPStatus(status).phrase.replace(" ", "")
        self.body = _compact(
            {"error": {"message": message, "type": error_type, "param": param, "code": status}}
        ).encode()


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for."""

    kind: Kind
    model: str
    prompts: tuple[bytes, ...]  # rendered, see `text`
    max_tokens: int | None  # None: as many as the model likes
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    choices: int
    cache_salt: str


def parse_ask(kind: Kind, raw: bytes, default_model: str) -> Ask:
    """Read a body. Raises ApiError (400) as vLLM would."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"Invalid JSON body: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary")
    limit = body.get("max_completion_tokens") if kind == "chat" else None
    limit = limit if limit is not None else body.get("max_tokens", None if kind == "chat" else 16)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ApiError(400, f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    choices = body.get("n") or 1
    if not isinstance(choices, int) or not 1 <= choices <= 128:
        raise ApiError(400, f"n must be an int from 1 to 128, got {choices!r}.", param="n")
    options = body.get("stream_options") or {}
    return Ask(
        kind=kind,
        model=str(body.get("model") or default_model),
        prompts=(_chat_prompt(body),) if kind == "chat" else tuple(_completion_prompts(body)),
        max_tokens=limit,
        min_tokens=int(body.get("min_tokens") or 0),
        ignore_eos=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        include_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        choices=choices,
        cache_salt=str(body.get("cache_salt") or ""),
    )


def _chat_prompt(body: dict[str, Any]) -> bytes:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "messages: a list of one or more messages is required", param="messages")
    return render_chat(body)


def _completion_prompts(body: dict[str, Any]) -> Iterable[bytes]:
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt:
        prompts = prompt
    else:
        raise ApiError(400, "prompt: a text, a list of texts, or lists of token ids is required", param="prompt")
    for one in prompts:
        if not isinstance(one, str) and not (isinstance(one, list) and all(isinstance(token, int) for token in one)):
            raise ApiError(400, "prompt: each must be a text or a list of token ids", param="prompt")
        if not one:
            raise ApiError(400, "prompt: the decoder prompt cannot be empty", param="prompt")
        yield render_prompt(one)


@lru_cache(maxsize=4)  # routers ask every server of a fleet for the same body, and one process plays them all
def rendered(kind: Kind, raw: bytes, default_model: str) -> bytes:
    """The answer to a render call: each prompt as token ids. Raises ApiError (400) as `parse_ask` does.

    Ids are made smaller than _VOCABULARY, as a real model's are; different tokens may then share one.
    """
    ask = parse_ask(kind, raw, default_model)
    answers = []
    for prompt in ask.prompts:
        padded = prompt + b" " * (-len(prompt) % 4)
        ids = [token % _VOCABULARY for token in memoryview(padded).cast("I")]
        answers.append({"request_id": "render", "token_ids": ids, "model": ask.model})
    return _compact(answers[0] if kind == "chat" else answers).encode()


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """The usage object; `cached_tokens` None: a server that does not tell."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }


def full_answer(
    kind: Kind,
    answer_id: str,
    model: str,
    created_unix_s: int,
    choices: Iterable[tuple[str, str]],
    usage_object: dict[str, Any],
) -> bytes:
    """A non-streaming answer; a choice is its text and its finish reason."""
    made: list[dict[str, Any]] = []
    for index, (text, reason) in enumerate(choices):
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        made.append(choice)
    answer = {
        "id": answer_id,
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": created_unix_s,
        "model": model,
        "choices": made,
        "usage": usage_object,
    }
    return _compact(answer).encode()


class ChunkWriter:
    """Server-sent events of one stream. Words are plain ASCII, so chunks are put together without a JSON encoder."""

    def __init__(self, kind: Kind, answer_id: str, model: str, created_unix_s: int) -> None:
        object_ = "chat.completion.chunk" if kind == "chat" else "text_completion"
        head = {"id": answer_id, "object": object_, "created": created_unix_s, "model": model}
        self._head = "data: " + _compact(head)[:-1] + ',"choices":['
        self._chat = kind == "chat"

    def role(self, index: int) -> str:
        """The first chunk of a chat answer; nothing for a completion."""
        if not self._chat:
            return ""
        return (
            f'{self._head}{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            '"finish_reason":null}]}\n\n'
        )

    def word(self, index: int, text: str, finish_reason: str | None = None) -> str:
        """A token or a few, the last ones with the reason."""
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        piece = f'"delta":{{"content":"{text}"}}' if self._chat else f'"text":"{text}"'
        return f'{self._head}{{"index":{index},{piece},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'

    def usage(self, usage_object: dict[str, Any]) -> str:
        """The chunk without choices that `include_usage` asks for."""
        return f'{self._head}],"usage":{_compact(usage_object)}}}\n\n'


DONE = "data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
SHUT_DOWN = "cannot schedule new futures after shutdown"


def error_event(message: str, status: int) -> str:
    """An error inside a stream."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": status}
    return f"data: {_compact({'error': error})}\n\n"
