"""What is believed to be on a server follows the server: it leaves, returns, restarts, sleeps, is small."""

from __future__ import annotations

import pytest

from extproc.pool.prefill import DEFAULT_RATE
from tests.placement.fleet import (
    chat,
    fleet,
    held_tokens,
    owe,
    page,
    say,
    say_all,
    send,
    serve,
    server,
    set_members,
    text,
    ttft,
)

RAW = chat(text(2000, "warm"))


def test_a_server_that_leaves_and_comes_back_holds_nothing_and_owes_nothing() -> None:
    """cases e04, e13"""
    router = fleet("cache-aware", 2)
    home = serve(router, RAW)
    send(router, RAW)
    set_members(router, [3 - home])
    assert home not in held_tokens(router, RAW)
    set_members(router, [1, 2])
    assert home not in held_tokens(router, RAW)
    assert server(router, home).prefill.owed(0.0) == 0
    assert server(router, home).in_flight == 0


def test_a_server_in_the_place_of_another_inherits_nothing() -> None:
    """case e13: it may get the number that the one before it had in the index"""
    router = fleet("cache-aware", 1)
    serve(router, RAW)
    set_members(router, [2])
    assert held_tokens(router, RAW) == {}
    assert serve(router, RAW) == 2
    assert set(held_tokens(router, RAW)) == {2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"process_start_s": 100.0}, {"process_start_s": 160.0}),
        ({"prompt_tokens": 5000.0}, {"prompt_tokens": 20.0}),
        ({"generation_tokens": 5000.0}, {"generation_tokens": 0.0}),
        ({"prefix_queries_tokens": 5000.0}, {"prefix_queries_tokens": 0.0}),
        ({"process_start_s": 100.0, "prompt_tokens": 1.0}, {"process_start_s": 160.0, "prompt_tokens": 5.0}),
    ],
)
def test_a_restart_is_seen_on_the_page_and_what_was_held_is_forgotten(
    before: dict[str, float], after: dict[str, float]
) -> None:
    """case e13: then the less busy server gets the request"""
    router = fleet("cache-aware", 2)
    home = serve(router, RAW)
    say(router, home, page(1.0, **before))
    assert set(held_tokens(router, RAW, 1.0)) == {home}
    owe(server(router, home), 500.0, 2.0)
    assert serve(router, RAW, 2.0) == home, "a little more to do does not outweigh what it holds"
    say(router, home, page(3.0, **after))
    assert held_tokens(router, RAW, 3.0) == {}
    owe(server(router, home), 500.0, 3.0)
    assert serve(router, RAW, 3.0) == 3 - home


def test_a_page_that_goes_on_is_no_restart() -> None:
    router = fleet("cache-aware", 2)
    home = serve(router, RAW)
    for at in range(1, 5):
        say(router, home, page(at, process_start_s=100.0, prompt_tokens=1000.0 * at, generation_tokens=10.0 * at))
    assert set(held_tokens(router, RAW, 5.0)) == {home}


def test_a_server_whose_page_tells_less_for_a_while_has_not_restarted() -> None:
    router = fleet("cache-aware", 2)
    home = serve(router, RAW)
    for at, tokens in enumerate((9000.0, None, 9100.0), 1):
        say(router, home, page(at, prompt_tokens=tokens))
    assert set(held_tokens(router, RAW, 5.0)) == {home}


def test_a_server_that_sleeps_forgets() -> None:
    """case e13"""
    router = fleet("cache-aware", 2)
    home = serve(router, RAW)
    say(router, home, page(1.0, sleeping=True))
    say(router, home, page(2.0, sleeping=False))
    assert held_tokens(router, RAW, 2.0) == {}


def test_no_more_is_believed_held_than_the_engine_has_room_for() -> None:
    """1,000 blocks of 16 tokens are 250 units of 64: eight prompts of 2,000 tokens, less what they exceed them by"""
    router = fleet("cache-aware", 1)
    say(router, 1, page(0.0, block_size_tokens=16, kv_blocks=1000, engines=1))
    for number in range(40):
        serve(router, chat(text(2000, number)))
    held = [number for number in range(40) if held_tokens(router, chat(text(2000, number)))]
    assert 6 <= len(held) <= 9
    assert held[-1] == 39
    total = sum(held_tokens(router, chat(text(2000, number)))[1] for number in held)
    assert total <= 16_000


def test_two_engines_behind_one_address_have_room_for_twice_as_much() -> None:
    router = fleet("cache-aware", 1)
    say(router, 1, page(0.0, block_size_tokens=16, kv_blocks=1000, engines=2))
    for number in range(40):
        serve(router, chat(text(2000, number)))
    assert 13 <= sum(bool(held_tokens(router, chat(text(2000, number)))) for number in range(40)) <= 17


def test_what_a_server_writes_pushes_out_what_it_held() -> None:
    router = fleet("cache-aware", 1)
    room = {"block_size_tokens": 16, "kv_blocks": 1000, "engines": 1}
    say(router, 1, page(0.0, generation_tokens=0.0, **room))
    serve(router, RAW)
    say(router, 1, page(1.0, generation_tokens=8_000.0, **room))
    assert held_tokens(router, RAW, 1.0)
    say(router, 1, page(2.0, generation_tokens=24_000.0, **room))
    assert held_tokens(router, RAW, 2.0) == {}


def test_a_newcomer_is_taken_to_be_as_fast_as_its_pool_mates() -> None:
    """and goes on being compared with them, not with a default"""
    router = fleet("cache-aware", 3)
    for number in range(1, 4):
        member = server(router, number)
        say(router, number, page(0.0, ttft=ttft(0, 0.0)))
        for i in range(200):
            owe(member, 1000.0, i * 2.0)
            say(router, number, page(i * 2.0 + 1, ttft=ttft(i + 1, (i + 1) * 1.02)))
    rates = [server(router, number).prefill.rate for number in range(1, 4)]
    assert all(950 < rate < 1250 for rate in rates), "1,000 tokens in 1 s beside the base"
    set_members(router, range(1, 8))
    assert all(950 < server(router, number).prefill.rate < 1250 for number in range(4, 8))
    newcomer = server(router, 7).prefill
    newcomer.observe(page(500.0, ttft=ttft(0, 0.0)))
    newcomer.add(1000.0, 500.0)
    newcomer.observe(page(501.5, ttft=ttft(1, 1.02)))
    assert 950 < newcomer.rate < 1250


def test_the_first_of_a_pool_are_taken_to_be_of_the_usual_kind() -> None:
    assert [each.prefill.rate for each in fleet("cache-aware", 3).pools[0].members] == [DEFAULT_RATE] * 3


def test_all_servers_gone_and_back_is_a_fresh_start() -> None:
    router = fleet("cache-aware", 3)
    for number in range(30):
        send(router, chat(text(500, number)))
    set_members(router, [])
    set_members(router, [1, 2, 3])
    say_all(router, 1.0)
    assert all(not held_tokens(router, chat(text(500, number)), 1.0) for number in range(30))
    assert router.placements["vllm"].index.stats().blocks == 0
