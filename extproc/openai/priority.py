"""How important is a request, by its own word? As for vLLM, a lower number is more important, and 0 is normal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from extproc.openai.body import read_object
from extproc.request import InferenceRequest, NoPrompt, RawRequest

NORMAL = 0
_LIMIT = 2**31  # what is beyond counts as this
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def priority_of(raw: RawRequest, header: str | None = None, request: InferenceRequest | None = None) -> int:
    """The number in `header` (lower case) if the request has it, else in the body's field `priority`, vLLM's own.

    What is no whole number counts as 0. Never raises. `request` is the body as understood, if it has been read.
    """
    text = raw.headers.get(header) if header is not None else None
    if text is not None:
        number = _NUMBER.fullmatch(text.strip())
        return _within(int(number[0])) if number else NORMAL
    if request is not None:
        return request.priority
    try:
        body = read_object(raw.body, raw.headers)
    except Exception:  # as in `understand`: a fault of ours must not cost a request its route
        return NORMAL
    return NORMAL if isinstance(body, NoPrompt) else priority_in(body)


def priority_in(body: Mapping[str, Any]) -> int:
    """The field `priority` of a body."""
    value = body.get("priority")
    return _within(value) if type(value) is int else NORMAL


def _within(number: int) -> int:
    return max(-_LIMIT, min(number, _LIMIT))
