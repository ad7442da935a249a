"""Paths tell the API, whatever stands before it and behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.paths import kind_of, response_id_in
from extproc.request import ApiKind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", ApiKind.CHAT),
        ("/v1/completions", ApiKind.COMPLETIONS),
        ("/v1/responses", ApiKind.RESPONSES),
        ("/v1/responses/resp_1", ApiKind.RESPONSES),
        ("/v1/responses/resp_1/cancel", ApiKind.RESPONSES),
        ("/v1/messages", ApiKind.MESSAGES),
        ("/v1/messages/count_tokens", ApiKind.TOKENIZE),
        ("/v1/embeddings", ApiKind.EMBEDDINGS),
        ("/score", ApiKind.SCORE),
        ("/v1/score", ApiKind.SCORE),
        ("/rerank", ApiKind.RERANK),
        ("/v2/rerank", ApiKind.RERANK),
        ("/pooling", ApiKind.POOLING),
        ("/classify", ApiKind.CLASSIFY),
        ("/tokenize", ApiKind.TOKENIZE),
        ("/detokenize", ApiKind.TOKENIZE),
        ("/v1/audio/transcriptions", ApiKind.AUDIO),
        ("/v1/audio/translations", ApiKind.AUDIO),
        ("/v1/models", ApiKind.OTHER),
        ("/health", ApiKind.OTHER),
        ("/", ApiKind.OTHER),
        ("", ApiKind.OTHER),
        ("/v1/chat/completions/render", ApiKind.OTHER),
    ],
)
def test_each_path_of_the_server_has_its_kind(path: str, kind: ApiKind) -> None:
    """case c18"""
    assert kind_of(path) is kind


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1/chat/completions?api-version=2024&x=/v1/embeddings",
        "//v1//chat//completions",
        "/openai/deployments/gpt/chat/completions?api-version=1",
        "/llm/v1/chat/completions#here",
        "/v1/%63hat/completions",
        "chat/completions",
    ],
)
def test_query_slashes_prefix_and_escapes_do_not_matter(path: str) -> None:
    """case c18"""
    assert kind_of(path) is ApiKind.CHAT


def test_the_stored_response_is_read_from_the_path() -> None:
    """case c15"""
    assert response_id_in("/v1/responses/resp_1?stream=false") == "resp_1"
    assert response_id_in("/v1/responses/resp_1/cancel") == "resp_1"
    assert response_id_in("/v1/responses") is None
    assert response_id_in("/v1/chat/completions") is None


@given(st.text())
def test_any_text_has_a_kind(path: str) -> None:
    assert isinstance(kind_of(path), ApiKind)
