"""Broken, odd and hostile bodies, made by rule (`fuzz.py`) and by hypothesis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.body import read_object
from extproc.openai.canonical import canonical
from extproc.request import ApiKind, NoPrompt
from tests.openai.asking import ask
from tests.openai.fuzz import PATHS, Fuzz

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(["messages", "input", "prompt", "system", "tools", "instructions", "user", "model"])


def test_no_body_raises_or_loses_its_pick() -> None:
    """R3; the same with 1,000,000 inputs: python -m tests.openai.fuzz 1000000"""
    fuzz = Fuzz(seed=7)
    fuzz.run(3000)
    assert fuzz.matched > 100


@given(st.dictionaries(fields, json_values), st.sampled_from(list(ApiKind)))
def test_any_json_has_a_canonical_form(body: dict[str, object], kind: ApiKind) -> None:
    """Called directly: `understand` would hide an exception."""
    first = canonical(kind, body)
    assert first == canonical(kind, body)
    assert 0 <= first.generated_from <= first.generated_to <= len(first.text)


@given(st.binary(max_size=200), st.sampled_from(["", "gzip", "deflate", "zstd", "br", "gzip, br", "x"]))
def test_any_bytes_are_an_object_or_have_a_reason(body: bytes, coding: str) -> None:
    assert isinstance(read_object(body, {"content-encoding": coding}), dict | NoPrompt)


@given(st.dictionaries(fields, json_values), st.sampled_from(PATHS))
def test_any_json_body_is_understood_or_has_a_reason(body: dict[str, object], path: str) -> None:
    found = ask(body, path)
    assert (found.no_prompt is None) == bool(found.prompt)
    assert found.no_prompt is not NoPrompt.UNPARSABLE
