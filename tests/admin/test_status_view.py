"""The one document that the status page and `extproc top` go by: what is unknown is null, and no prompt is in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from extproc.admin.status_view import PICKS_SHOWN
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By
from extproc.request import RawRequest
from tests.support.status_fleet import BODY, UNIX_S, Advice, Made, advised


def rows(made: Made, pool: int = 0) -> dict[str, dict[str, Any]]:
    return {each["address"]: each for each in made.view()["pools"][pool]["endpoints"]}


def test_an_endpoint_is_told_with_its_load_state_and_why() -> None:
    made = Made(vllm=4)
    made.hour(3)
    made.trouble()
    found = rows(made)
    assert found["10.0.0.1:8000"] == {
        "address": "10.0.0.1:8000",
        "name": None,
        "models": None,
        "more_models": 0,
        "state": "ready",
        "why": None,
        "waiting": found["10.0.0.1:8000"]["waiting"],
        "running": found["10.0.0.1:8000"]["running"],
        "kv_usage_ratio": found["10.0.0.1:8000"]["kv_usage_ratio"],
        "in_flight": 0,
        "hit_ratio": 0.4,
        "age_s": 0.0,
        "fresh": True,
    }
    assert found["10.0.0.1:8000"]["running"] > 0
    states = [(each["state"], each["why"]) for each in found.values()]
    assert states[1:] == [
        ("draining", "by the operator, waits for requests of others, 60 s left"),
        ("unhealthy", "connection refused"),
        ("ready", "its load is not known: timeout: no answer in 1 s"),
    ]
    last = found["10.0.0.4:8000"]
    assert (last["waiting"], last["running"], last["kv_usage_ratio"], last["fresh"]) == (None, None, None, False)


def test_a_pool_is_summed_over_what_is_known() -> None:
    made = Made(vllm=3, empty=0)
    made.now = 1.0
    first, second, _ = made.pools[0].members
    made.sample(made.pools[0], first.address, waiting=2.0, running=5.0, kv_usage_ratio=0.25)
    made.sample(made.pools[0], second.address, waiting=1.0, kv_usage_ratio=0.75)
    made.pick(end=False)
    pool, empty = made.view()["pools"]
    assert (pool["servers"], pool["serving"]) == (3, 2)
    assert (pool["waiting"], pool["running"], pool["kv_usage_ratio"]) == (3.0, 5.0, 0.5)
    assert (pool["in_flight"], pool["hit_ratio"], pool["autoscale"]) == (1, None, None)
    assert (empty["servers"], empty["endpoints"], empty["waiting"], empty["kv_usage_ratio"]) == (0, [], None, None)


def test_the_last_picks_are_told_with_their_reason_and_how_they_ended() -> None:
    made = Made(vllm=2)
    made.hour(PICKS_SHOWN + 3)
    made.now += 2.0
    made.pick(path="/v1/chat/completions?key=hidden", end=False)
    picks = made.view()["picks"]
    assert len(picks) == PICKS_SHOWN
    assert [each["age_s"] for each in picks[:3]] == [0.0, 2.0, 12.0]
    newest, before = picks[:2]
    assert (newest["outcome"], before["outcome"], before["status"]) == ("in_flight", "ok", 200)
    assert before["served"] == before["picked"]
    assert newest["path"] == "/v1/chat/completions"
    assert (before["model"], before["by"], before["panic"]) == ("llama-3-8b", "first_token", False)
    assert before["prompt_tokens"] >= before["held_tokens"] > 0
    assert before["why"].startswith("holds ")  # without the address, which stands beside it


def test_nothing_of_a_prompt_is_in_it() -> None:
    made = Made(Advice(vllm=advised()), vllm=2)
    made.hour(3, picks=2)
    made.pick(headers={"x-session-id": "hidden-key"})
    text = json.dumps(made.view())
    assert BODY
    assert "secret" not in text
    assert "hidden-key" not in text


def test_long_names_and_many_models_are_cut() -> None:
    made = Made(vllm=1)
    pool = made.pools[0]
    pool.told_models(pool.members[0].address, frozenset({"a", "b", "c", "d", "e"}), 1.0)
    made.hour(1, picks=0)
    made.pick(path="/v1/completions/" + "x" * 5000, body=b'{"model": "%s", "prompt": "p"}' % (b"m" * 5000))
    assert rows(made)["10.0.0.1:8000"]["models"] == ["a", "b", "c"]
    assert rows(made)["10.0.0.1:8000"]["more_models"] == 2
    (pick,) = made.view()["picks"]
    assert pick["path"] == ("/v1/completions/" + "x" * 100)[:100]
    assert pick["model"] == "m" * 100


def test_a_name_that_an_address_was_found_by_is_told() -> None:
    made = Made(vllm=0)
    made.pools[0].set_endpoints([Endpoint(Address.of("10.0.0.9", 8000), hostname="gpu-9.test")])
    assert rows(made)["10.0.0.9:8000"]["name"] == "gpu-9.test"


def test_the_recommendation_is_told_whole() -> None:
    made = Made(Advice(vllm=advised(), other=None), vllm=1, other=1, third=1)
    vllm, other, third = (each["autoscale"] for each in made.view()["pools"])
    assert (vllm["desired"], vllm["signals"][1]["replicas"], vllm["verdict"]) == (4, 4, "scaling")
    assert "error" not in vllm
    assert other["error"] == "the pool was not looked at yet"
    assert third is None


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (By.OPERATOR, "by the operator, waits for its requests"),
        (By.CONFIG, "by the configuration, waits for its requests"),
        (By.SELF, "by the server itself, waits for its requests"),
        (By.PLATFORM, "by its platform, waits for its requests"),
    ],
)
def test_who_drains_a_server_and_what_is_waited_for_is_told(by: By, words: str) -> None:
    made = Made(vllm=1)
    made.hour(1, picks=0)
    made.pick(end=False)
    made.pools[0].members[0].ask_drain(by, made.now)
    assert rows(made)["10.0.0.1:8000"]["why"] == words


def test_a_drain_that_expired_says_what_was_left() -> None:
    made = Made(vllm=1)
    made.hour(1, picks=0)
    made.pick(end=False)
    member = made.pools[0].members[0]
    member.ask_drain(By.OPERATOR, made.now, made.now + 1.0).advance(made.now + 2.0, 1, refused=False)
    row = rows(made)["10.0.0.1:8000"]
    assert (row["state"], row["why"]) == ("expired", "by the operator, its deadline has passed with 1 requests there")


def test_two_hundred_endpoints_and_an_hour_are_a_small_document() -> None:
    large, long = Made(vllm=200), Made(vllm=1)
    large.hour(3, picks=0)
    long.hour(360, picks=0)
    assert len(json.dumps(large.view())) < 100_000
    assert len(json.dumps(long.view())) < 40_000
    assert len(json.dumps(long.view(UNIX_S + long.now - 15.0))) < 3_000


def test_a_request_whose_body_was_not_read_is_told_as_such() -> None:
    made = Made(vllm=1)
    made.hour(1, picks=0)
    made.router.route(RawRequest(), made.now)
    pick = made.view()["picks"][0]
    assert pick["prompt_tokens"] is None
    assert pick["model"] is None


def test_the_page_of_the_docs_names_every_field() -> None:
    made = Made(Advice(vllm=advised()), vllm=1)
    made.hour(2)
    page = (Path(__file__).parents[2] / "docs" / "status-page.md").read_text()
    named = set(re.findall(r"`([a-z0-9_]+)`|`(?:[a-z]+\[\]\.)?([a-z_]+)(?:\[\])?`", page))
    known = {name for pair in named for name in pair}
    view = made.view()
    (pool,) = view["pools"]
    columns = view["history"]["pools"]["vllm"]
    fields = {*view, *view["requests"], *pool, *pool["endpoints"][0], *view["picks"][0], *columns} - {"every_s", "kept"}
    assert fields - known == set()
