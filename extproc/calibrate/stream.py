"""How many tokens has the answer brought so far, and how did it end?

The server-sent events of a streamed completion or chat, fed as bytes arrive. vLLM sends no event without a token but
the chat's first, which carries the role alone, and the last, which carries the usage.
"""

from __future__ import annotations

from typing import Any

import orjson

_MOST_BYTES = 4 * 1024 * 1024  # of an event


class StreamReader:
    """One answer."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] = {}
        self.error: str | None = None  # an event said so, or the stream is none
        self.done = False  # [DONE] came
        self.finished = False  # a choice has its finish_reason
        self._rest = b""

    def feed(self, piece: bytes) -> int:
        """How many events with tokens ended in this piece."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MOST_BYTES:
            self.error = "an event of the stream does not end"
            self._rest = b""
        return sum(self._event(line[5:].strip()) for line in lines if line.startswith(b"data:"))

    def _event(self, data: bytes) -> bool:
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            self.error = f"an event of the stream is no JSON object: {data[:80]!r}"
            return False
        if event.get("error"):
            self.error = _message(event["error"])
            return False
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        choice = choices[0]
        self.finished = self.finished or choice.get("finish_reason") is not None
        delta = choice.get("delta")
        if isinstance(delta, dict):
            return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
        return isinstance(choice.get("text"), str)

    def tokens(self, name: str) -> int | None:
        """Of the usage; None: not told."""
        value = self.usage.get(name)
        return value if isinstance(value, int) else None

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if isinstance(value, int) else None


def error_message(body: bytes) -> str:
    """What the body of an answer other than 200 says, for a person."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode("utf-8", "replace").strip() or "an empty body"
    if isinstance(document, dict):
        return _message(document.get("error") or document.get("message") or document.get("detail") or document)
    return _message(document)


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else None
    return (text if isinstance(text, str) else orjson.dumps(error).decode() if not isinstance(error, str) else error)[
        :500
    ]
