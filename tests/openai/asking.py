"""Requests for tests: bodies in, what is understood out."""

from __future__ import annotations

import json
from typing import Any

from extproc.openai.understand import understand
from extproc.request import InferenceRequest, RawRequest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"


def ask(body: object, path: str = CHAT, *, headers: dict[str, str] | None = None, **options: Any) -> InferenceRequest:
    """`body`: bytes as they are, or anything that is to be JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return understand(RawRequest("POST", path, headers or {}, raw), **options)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def chat(*messages: object, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": list(messages), **more}
