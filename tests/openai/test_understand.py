"""The fields around the prompt; only those at the top level of the body count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.understand import understand
from extproc.request import ApiKind, InferenceRequest, NoPrompt, RawRequest
from tests.openai.asking import CHAT, COMPLETIONS, RESPONSES, ask, chat, user

FORM = {"content-type": "multipart/form-data; boundary=XX"}


def form(*parts: bytes) -> bytes:
    return b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts) + b"--XX--\r\n"


MODEL_PART = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper'
FILE_PART = b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + bytes(20_000_000)


class TestOnlyTopLevelFieldsCount:
    TRAP = '{"model":"evil","user":"mallory","cache_salt":"s","stream":true,"max_tokens":1}'

    def test_text_of_the_prompt_fools_nothing(self) -> None:
        """R3: a prompt that contains `"model":` text"""
        found = ask(chat(user(self.TRAP), {"role": "user", "content": [{"type": "text", "text": '","user":"mallory'}]}))
        assert (found.model, found.session_key, found.cache_salt, found.stream, found.max_tokens) == (
            "m",
            None,
            None,
            False,
            None,
        )

    def test_nested_objects_fool_nothing(self) -> None:
        nested = {"model": "evil", "user": "mallory", "cache_salt": "s", "stream": True, "max_tokens": 1}
        found = ask({"messages": [{**nested, "role": "user"}], "metadata": nested, "extra_body": nested})
        assert (found.model, found.session_key, found.cache_salt, found.stream, found.max_tokens) == (
            None,
            None,
            None,
            False,
            None,
        )

    @given(st.text())
    def test_no_text_fools_anything(self, text: str) -> None:
        found = ask({"prompt": text}, COMPLETIONS)
        assert (found.model, found.session_key, found.cache_salt) == (None, None, None)


class TestSessionKey:
    @pytest.mark.parametrize(
        ("body", "key"),
        [
            ({"user": "ann"}, "ann"),
            ({"prompt_cache_key": "k", "user": "ann"}, "k"),
            ({"conversation": "conv_1", "user": "ann"}, "conv_1"),
            ({"conversation": {"id": "conv_2"}}, "conv_2"),
            ({"conversation": {"id": ""}, "user": "ann"}, "ann"),
            ({"conversation": {}, "prompt_cache_key": 5, "user": ""}, None),
            ({"user": None}, None),
            ({"user": ["ann"]}, None),
            ({}, None),
        ],
    )
    def test_it_is_the_first_field_that_has_one(self, body: dict[str, object], key: str | None) -> None:
        """An empty text is a client's default, and no key."""
        assert ask({**chat(user("x")), **body}).session_key == key

    def test_headers_come_first_and_empty_ones_are_none(self) -> None:
        body = {**chat(user("x")), "user": "ann"}
        names = ("x-session-id", "x-user")
        assert ask(body, headers={"x-user": "u", "x-session-id": "s"}, session_headers=names).session_key == "s"
        assert ask(body, headers={"x-user": "u", "x-session-id": ""}, session_headers=names).session_key == "u"
        assert ask(body, headers={"x-other": "o"}, session_headers=names).session_key == "ann"

    def test_headers_count_for_bodies_that_are_not_understood(self) -> None:
        for body in (b"", b"broken", b"[1]"):
            assert ask(body, headers={"x-user": "u"}, session_headers=["x-user"]).session_key == "u"

    def test_which_fields_count_is_configurable(self) -> None:
        assert ask({"tenant": "t", "user": "ann", "prompt": "x"}, session_fields=["tenant"]).session_key == "t"


class TestFields:
    @pytest.mark.parametrize(
        ("body", "bound"),
        [
            ({"max_tokens": 5}, 5),
            ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
            ({"max_output_tokens": 9}, 9),
            ({"max_tokens": 0}, 0),
            ({"max_tokens": "5"}, None),
            ({"max_tokens": True}, None),
            ({"max_tokens": -1}, None),
            ({"max_tokens": None}, None),
            ({}, None),
        ],
    )
    def test_the_token_bound(self, body: dict[str, object], bound: int | None) -> None:
        assert ask(body).max_tokens == bound

    def test_an_embedding_generates_nothing(self) -> None:
        assert ask({"input": "x", "max_tokens": 5}, path="/v1/embeddings").max_tokens == 0

    @pytest.mark.parametrize("model", [None, 5, "", [], {}])
    def test_a_model_that_is_no_name_is_none(self, model: object) -> None:
        """case c19: model missing"""
        assert ask({"model": model}).model is None

    def test_a_model_name_is_taken_as_it_is(self) -> None:
        """case c19"""
        assert ask({"model": "org/m:tag"}).model == "org/m:tag"

    def test_a_salt_of_another_type_is_ignored(self) -> None:
        """case c14"""
        assert [ask({"cache_salt": salt}).cache_salt for salt in ("t1", "t2", None, 5, "")] == [
            "t1",
            "t2",
            None,
            None,
            None,
        ]

    def test_texts_and_identifiers_are_not_shown(self) -> None:
        """case c14: salts are never logged; case c13: nor are prompts"""
        found = ask({"model": "m", "prompt": "hush", "cache_salt": "hush", "user": "hush"}, COMPLETIONS)
        assert "hush" not in repr(found)
        assert "hush" not in repr(ask({"input": "x", "previous_response_id": "hush"}, RESPONSES))


class TestApis:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/rerank", {"model": "r", "query": "q", "documents": ["d1", "d2"]}),
            ("/score", {"model": "r", "text_1": ["a"], "text_2": ["b"]}),
            ("/tokenize", {"model": "r", "prompt": "x"}),
            ("/pooling", {"model": "r", "input": "x"}),
            ("/classify", {"model": "r", "input": "x"}),
            ("/v1/brand/new", {"model": "r", "messages": [user("x")]}),
        ],
    )
    def test_unknown_shapes_have_a_model_and_no_prompt(self, path: str, body: object) -> None:
        """case c18"""
        found = ask(body, path)
        assert (found.model, found.prompt, found.no_prompt) == ("r", b"", NoPrompt.UNKNOWN_API)

    def test_without_a_path_the_fields_tell(self) -> None:
        """case c21: some exchange shapes do not hand on the path"""
        assert ask(chat(user("x")), "").prompt == ask(chat(user("x")), CHAT).prompt
        assert ask({"prompt": "x"}, "").kind is ApiKind.COMPLETIONS
        assert ask({"x": 1}, "").no_prompt is NoPrompt.UNKNOWN_API

    def test_a_stored_response_is_known_by_its_path(self) -> None:
        """case c15"""
        for method, path in (("GET", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")):
            found = understand(RawRequest(method, path))
            assert (found.response_id, found.no_prompt) == ("resp_1", NoPrompt.NO_BODY)

    def test_multipart_is_never_read_as_json(self) -> None:
        """case c17"""
        found = ask(form(MODEL_PART, FILE_PART), "/v1/audio/translations", headers=FORM)
        assert (found.kind, found.model, found.no_prompt) == (ApiKind.AUDIO, "whisper", NoPrompt.UNKNOWN_API)

    @pytest.mark.parametrize(
        ("body", "headers"),
        [
            (form(FILE_PART, MODEL_PART), FORM),  # the field lies behind the file
            (form(MODEL_PART), {"content-type": "multipart/form-data"}),
            (form(MODEL_PART), {"content-type": "multipart/form-data; boundary="}),
            (form(b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\nx'), FORM),
            (form(b"no head"), FORM),
            (form(MODEL_PART + b"x" * 1000), FORM),
            (MODEL_PART, FORM),
            (b'{"model":"m"}', {}),
        ],
    )
    def test_a_form_that_is_not_understood_has_no_model(self, body: bytes, headers: dict[str, str]) -> None:
        """case c17"""
        found = ask(body, "/v1/audio/transcriptions", headers=headers)
        assert (found.model, found.no_prompt) == (None, NoPrompt.UNKNOWN_API)


def test_each_reason_without_a_prompt_can_be_told() -> None:
    """case c21"""
    reasons = {
        ask(b"").no_prompt,
        ask(b'{"prompt":"' + b"x" * 3_000_000 + b'"}').no_prompt,
        ask(b"x", headers={"content-encoding": "br"}).no_prompt,
        ask(b"x").no_prompt,
        ask({}, "/v1/x").no_prompt,
        ask({}, CHAT).no_prompt,
    }
    assert reasons == set(NoPrompt)


def test_a_fault_in_reading_costs_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("extproc.openai.understand.read_object", broken)
    found = ask({"prompt": "x"}, COMPLETIONS, headers={"x-user": "u"}, session_headers=["x-user"])
    assert found == InferenceRequest(ApiKind.COMPLETIONS, session_key="u", no_prompt=NoPrompt.UNPARSABLE)
