"""Which bytes stand for a prompt?

Two rules decide the form. What the server's chat template would render alike is alike here: roles, names, texts, tool
calls and tools count, the order of JSON keys and white space do not. And a chat that has grown *begins* with the bytes
it had before, so its blocks hash alike: what applies to the whole prompt (tools, template options) comes first, then
one frame after the other, and no frame tells of what follows it.

Frames open with bytes that UTF-8 never contains, so no text can pass for a frame. Token ids stand as 4 bytes each,
little endian, without a frame around the first list. Any odd value contributes a tag of its type; nothing raises.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping
from typing import Any

import orjson

from extproc.openai.media import digest, elide
from extproc.request import ApiKind
from extproc.value import value

_OPTION = b"\xfd"  # what applies to the whole prompt
_TURN = b"\xff"  # a message, an item, one text of several
_FIELD = b"\xfe"  # within a turn

# Top-level fields that change what a template renders before the first message.
_OPTIONS = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "functions",
    "mm_processor_kwargs",
    "previous_response_id",
    "reasoning_effort",
    "thinking",
    "tools",
)
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "reasoning": "text",
    "reasoning_text": "text",
    "summary_text": "text",
}
# Parts whose content the model reads as text; all others, images and audio among them, count by digest.
_JSON_PARTS = frozenset({"tool_use", "tool_result", "function_call", "function_call_output", "json"})
# Given anew by the server or the client's library for the same content.
_VOLATILE = frozenset({"id", "status", "cache_control"})
_ITEMS_AS_JSON = ("function_call", "function_call_output", "reasoning")
_TOOL_RESULT_DEPTH = 2  # a tool result holds parts; parts within those count by digest


@value
class CanonicalPrompt:
    """The bytes, and which of them are the model's last answer that more input follows (equal: none)."""

    text: bytes
    generated_from: int = 0
    generated_to: int = 0


def canonical(kind: ApiKind, body: Mapping[str, Any]) -> CanonicalPrompt:
    """The prompt of a request. Empty text: there is none, or in a shape the server will refuse."""
    if kind in (ApiKind.CHAT, ApiKind.MESSAGES):
        return _chat(body)
    if kind is ApiKind.RESPONSES:
        return _responses(body)
    if kind is ApiKind.COMPLETIONS:
        return CanonicalPrompt(_plain(body.get("prompt")))
    if kind is ApiKind.EMBEDDINGS:
        return _chat(body) if "messages" in body else CanonicalPrompt(_plain(body.get("input")))
    return CanonicalPrompt(b"")


def utf8(text: str) -> bytes:
    """Halves of surrogate pairs, which JSON can spell, are kept."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def sorted_json(value: Any) -> bytes:
    """JSON with sorted keys and no white space, the same for equal values; a tag when it is nested too deep."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        # Raised for halves of surrogate pairs and integers over 64 bits, but also from 254 levels on: there the
        # standard library's limit differs between Python versions, so it is not asked.
        if "ecursion" in str(error):
            return b"?deep"
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return b"?"


def _odd(value: object) -> bytes:
    return b"?" + type(value).__name__.encode()


def _scalar(value: object) -> bytes:
    return utf8(value) if isinstance(value, str) else _odd(value)


def _options(body: Mapping[str, Any]) -> bytes:
    frames: list[bytes] = []
    for name in _OPTIONS:
        value = body.get(name)
        if value:
            frames += (_OPTION, name.encode(), b"=", sorted_json(value))
    return b"".join(frames)


# Chats.


def _chat(body: Mapping[str, Any]) -> CanonicalPrompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return CanonicalPrompt(b"")
    frames = [_options(body)]
    system = body.get("system")  # Anthropic's; a field of no meaning in OpenAI's chats
    if system:
        frames.append(_message({"role": "system", "content": system}))
    before = len(frames)
    frames += [_message(message) for message in messages]
    return _with_answer(frames, before, [isinstance(m, dict) and m.get("role") == "assistant" for m in messages])


def _with_answer(frames: list[bytes], before: int, generated: list[bool]) -> CanonicalPrompt:
    """Join the frames; the answer is the last run of generated ones, if something follows it."""
    end = len(generated)
    while end and not generated[end - 1]:
        end -= 1
    if end in (0, len(generated)):
        return CanonicalPrompt(b"".join(frames))
    start = end
    while start and generated[start - 1]:
        start -= 1
    sizes = [len(frame) for frame in frames]
    return CanonicalPrompt(b"".join(frames), sum(sizes[: before + start]), sum(sizes[: before + end]))


def _message(message: object) -> bytes:
    if not isinstance(message, dict):
        return _TURN + _odd(message)
    content = message.get("content")
    if len(message) == 2 and type(content) is str and "role" in message:  # as most are: nothing else to look for
        return b"".join((_TURN, _scalar(message["role"]), _FIELD, b"t", utf8(content)))
    out = [_TURN, _scalar(message.get("role"))]
    for name, tag in (("name", b"n"), ("tool_call_id", b"i")):
        value = message.get(name)
        if value is not None:
            out += (_FIELD, tag, _scalar(value))
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str) and value:
            out += (_FIELD, b"r", utf8(value))
    if type(content) is str:
        out += (_FIELD, b"t", utf8(content))
    elif content is not None:
        _parts(out, content, _TOOL_RESULT_DEPTH)
    for name in ("tool_calls", "function_call"):
        value = message.get(name)
        if value:
            out += (_FIELD, b"c", sorted_json(value))
    return b"".join(out)


def _parts(out: list[bytes], content: object, depth: int) -> None:
    if not isinstance(content, list):
        out += (_FIELD, _odd(content))
        return
    for part in content:
        if isinstance(part, str):
            out += (_FIELD, b"t", utf8(part))
        elif isinstance(part, dict):
            _part(out, part, depth)
        else:
            out += (_FIELD, _odd(part))


def _part(out: list[bytes], part: dict[str, Any], depth: int) -> None:
    kind = part.get("type")
    text = part.get(_TEXT_PARTS.get(kind, "text")) if isinstance(kind, str) and kind in _TEXT_PARTS else None
    if isinstance(text, str):
        out += (_FIELD, b"t", utf8(text))
        return
    kept = {name: value for name, value in part.items() if name not in _VOLATILE}
    out += (_FIELD, b"x", _scalar(kind), b"=")
    if kind == "tool_result" and isinstance(kept.get("content"), list) and depth > 0:
        inner = kept.pop("content")
        out.append(sorted_json(kept))
        _parts(out, inner, depth - 1)
    elif isinstance(kind, str) and kind in _JSON_PARTS:
        out.append(sorted_json(kept))
    else:
        out.append(digest(elide(sorted_json(kept))))  # the same digest whether or not the body was elided before


# Responses.


def _responses(body: Mapping[str, Any]) -> CanonicalPrompt:
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) and given else given
    if not isinstance(items, list) or not items:
        return CanonicalPrompt(b"")
    frames = [_options(body)]
    instructions = body.get("instructions")
    if instructions:
        frames.append(_message({"role": "system", "content": instructions}))
    before = len(frames)
    frames += [_item(item) for item in items]
    return _with_answer(frames, before, [_is_output(item) for item in items])


def _item(item: object) -> bytes:
    if not isinstance(item, dict):
        return _TURN + _odd(item)
    if "role" in item:
        return _message(item)
    out = [_TURN]
    if item.get("type") in _ITEMS_AS_JSON:
        out += (_FIELD, b"c", sorted_json({name: value for name, value in item.items() if name not in _VOLATILE}))
    else:
        _part(out, item, _TOOL_RESULT_DEPTH)
    return b"".join(out)


def _is_output(item: object) -> bool:
    """Items that a response hands out, and that the client hands back in the next request."""
    if not isinstance(item, dict):
        return False
    if "role" in item:
        return bool(item["role"] == "assistant")
    kind = item.get("type")
    return isinstance(kind, str) and not kind.endswith("_output") and kind != "item_reference"


# Completions and embeddings.


def _plain(prompt: object) -> bytes:
    """A text, a list of texts, token ids, or a list of lists of them. Empty for anything else (a mixture, too)."""
    if isinstance(prompt, str):
        return _TURN + utf8(prompt) if prompt else b""
    if not isinstance(prompt, list) or not prompt:
        return b""
    if all(type(each) is str for each in prompt):
        return b"".join([_TURN + utf8(each) for each in prompt])
    if all(type(each) is list for each in prompt):
        lists = [_token_ids(each) for each in prompt]
        return b"" if None in lists else (_TURN * 4).join([each for each in lists if each is not None])
    return _token_ids(prompt) or b""


def _token_ids(ids: list[Any]) -> bytes | None:
    """None when one of them is no token id, or there are none."""
    try:
        packed = array("I", ids)
    except (TypeError, OverflowError):
        return None
    if packed.itemsize != 4 or sys.byteorder != "little":
        return b"".join([number.to_bytes(4, "little") for number in packed]) or None
    return packed.tobytes() or None
