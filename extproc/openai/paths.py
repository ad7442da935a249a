"""Which API does a path call?

Only the last segments count, so gateways may put any prefix before them (`/v1`, `/openai/deployments/x`, `/llm`). What
is not known is `OTHER`, never refused: vLLM grows new paths faster than routers learn them.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from extproc.request import ApiKind

_LAST = {
    "completions": ApiKind.COMPLETIONS,
    "responses": ApiKind.RESPONSES,
    "messages": ApiKind.MESSAGES,
    "embeddings": ApiKind.EMBEDDINGS,
    "score": ApiKind.SCORE,
    "rerank": ApiKind.RERANK,
    "pooling": ApiKind.POOLING,
    "classify": ApiKind.CLASSIFY,
    "tokenize": ApiKind.TOKENIZE,
    "detokenize": ApiKind.TOKENIZE,
}
_LAST_TWO = {
    ("chat", "completions"): ApiKind.CHAT,
    ("messages", "count_tokens"): ApiKind.TOKENIZE,
    ("audio", "transcriptions"): ApiKind.AUDIO,
    ("audio", "translations"): ApiKind.AUDIO,
}
_SHORT = 128  # characters of a path that is remembered: it is the client's text


def _segments(path: str) -> list[str]:
    bare = path.partition("?")[0].partition("#")[0]
    if "%" in bare:
        bare = unquote(bare)
    return [segment for segment in bare.split("/") if segment]


def kind_of(path: str) -> ApiKind:
    """The API of a path; the query, doubled and trailing slashes and any prefix do not matter."""
    return _known_kind(path) if len(path) <= _SHORT else _kind(path)


@lru_cache(maxsize=256)
def _known_kind(path: str) -> ApiKind:
    return _kind(path)


def _kind(path: str) -> ApiKind:
    segments = _segments(path)
    if not segments:
        return ApiKind.OTHER
    two = _LAST_TWO.get((segments[-2], segments[-1])) if len(segments) > 1 else None
    kind = two or _LAST.get(segments[-1])
    if kind is not None:
        return kind
    return ApiKind.OTHER if _response_id(segments) is None else ApiKind.RESPONSES


def response_id_in(path: str) -> str | None:
    """The stored response a path names, as in `/v1/responses/resp_1` and `/v1/responses/resp_1/cancel`."""
    return _response_id(_segments(path))


def _response_id(segments: list[str]) -> str | None:
    for before in (-2, -3):
        if len(segments) >= -before and segments[before] == "responses":
            return segments[before + 1]
    return None
