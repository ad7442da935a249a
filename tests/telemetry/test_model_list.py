"""What a list of models says, and what is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.telemetry.model_list import read_models


def test_every_served_name_and_every_adapter_is_in_it() -> None:
    """case c19: as vLLM writes it, two served names and an adapter"""
    entry = {"object": "model", "created": 1, "owned_by": "vllm", "root": "/models/phi", "max_model_len": 4096}
    names = [("phi", None), ("org/phi-4-mm:tag", None), ("sql-adapter", "phi")]
    data = [entry | {"id": name, "parent": parent, "permission": []} for name, parent in names]
    page = json.dumps({"object": "list", "data": data}).encode()
    assert read_models(page) == {"phi", "org/phi-4-mm:tag", "sql-adapter"}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>Bad Gateway</html>",
        b"[]",
        b'{"data": {}}',
        b'{"data": []}',
        b'{"data": [{"id": "a"}, {"object": "model"}]}',
        b'{"data": [{"id": "a"}, {"id": ""}]}',
        b'{"data": [{"id": "a"}, {"id": 1}]}',
        b'{"data": [{"id": "a"}, "b"]}',
        b'{"data": [{"id": "a"}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_believed_whole_tells_nothing(page: bytes) -> None:
    assert read_models(page) is None


@given(
    st.binary()
    | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner)).map(lambda v: json.dumps(v).encode())
)
@example(b'{"data": null}')
def test_it_never_raises_and_never_says_that_a_server_serves_nothing(page: bytes) -> None:
    models = read_models(page)
    assert models is None or models
