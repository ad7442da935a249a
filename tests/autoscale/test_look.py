"""What of the router's pool counts as capacity, and what its servers counted together."""

from __future__ import annotations

from dataclasses import replace

from extproc.autoscale.look import PoolLook
from extproc.autoscale.reading import Offered, ServerState
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By
from extproc.pool.pool import Pool
from extproc.pool.sample import Histogram, LoadSample

ONE, TWO = (Endpoint(Address.of("10.0.0.1", port)) for port in (1, 2))


def page(at_s: float, requests: float) -> LoadSample:
    """After so many requests of 100 tokens, 40 of them cached, 10 answered."""
    return LoadSample(
        taken_at_s=at_s,
        running=1.0,
        waiting=0.0,
        kv_usage_ratio=0.1,
        prompt_tokens=100.0 * requests,
        cached_prompt_tokens=40.0 * requests,
        generation_tokens=10.0 * requests,
        ttft=Histogram((1.0, float("inf")), (requests, requests), requests),
    )


def pool() -> Pool:
    made = Pool("p", stale_after_s=3.0)
    made.set_endpoints([ONE, TWO])
    return made


def test_states() -> None:
    of = pool()
    look = PoolLook(of, lambda: 7.0)
    assert [each.state for each in look.read(0.0).servers] == [ServerState.STARTING] * 2
    for endpoint in (ONE, TWO):
        of.observe(endpoint.address, page(1.0, 0.0))
    read = look.read(1.5)
    assert [(each.state, each.age_s) for each in read.servers] == [(ServerState.READY, 0.5)] * 2
    assert read.offered.requests == 7.0
    assert [each.state for each in look.read(9.0).servers] == [ServerState.STALE] * 2, "no sample for too long"
    of.observe(ONE.address, page(9.0, 0.0))
    of.observe(TWO.address, replace(page(9.0, 0.0), running=None, waiting=None, kv_usage_ratio=None))
    assert [each.state for each in look.read(9.0).servers] == [ServerState.READY, ServerState.STALE]
    member = of.member(TWO.address)
    assert member is not None
    of.drains.ask(member, By.OPERATOR, 9.0, 60.0)
    assert look.read(9.0).count(ServerState.DRAINING) == 1


def test_a_server_at_whose_port_nobody_listens_yet_starts_and_one_that_served_before_is_unknown() -> None:
    """A server that loads its weights refuses connections: it is on its way, not lost."""
    of = pool()
    look = PoolLook(of, lambda: 7.0)
    of.observe(ONE.address, page(1.0, 0.0))
    for at_s in (1.5, 2.5, 3.5):
        for endpoint in (ONE, TWO):
            of.scrape_failed(endpoint.address, "connection refused", at_s, answered=False, refused=True)
    assert [each.state for each in look.read(3.5).servers] == [ServerState.STALE, ServerState.STARTING]
    of.observe(TWO.address, page(4.0, 0.0))
    assert [each.state for each in look.read(4.0).servers] == [ServerState.STALE, ServerState.READY]


def test_what_was_counted_stays_counted() -> None:
    of = pool()
    look = PoolLook(of, lambda: None)
    of.observe(ONE.address, page(0.0, 1000.0))
    assert look.read(0.0).offered.begun == 0.0, "what was before us does not count"
    of.observe(ONE.address, page(1.0, 1010.0))
    offered = look.read(1.0).offered
    assert (offered.begun, offered.prompt_tokens, offered.uncached_tokens, offered.output_tokens) == (
        10,
        1000,
        600,
        100,
    )
    assert look.read(1.5).offered == offered, "the same sample again"
    of.observe(ONE.address, page(2.0, 5.0))  # restarted
    assert look.read(2.0).offered.begun == 15.0
    of.set_endpoints([TWO])
    of.observe(TWO.address, page(3.0, 8.0))
    assert look.read(3.0).offered.begun == 15.0
    of.observe(TWO.address, page(4.0, 9.0))
    assert look.read(4.0).offered.begun == 16.0


def test_what_no_server_tells_of_is_unknown_not_zero() -> None:
    of = pool()
    look = PoolLook(of, lambda: 1.0)
    assert look.read(0.0).offered == Offered(requests=1.0)
    for at_s in (0.0, 1.0):
        of.observe(ONE.address, replace(page(at_s, 10.0 * at_s), generation_tokens=None, prompt_tokens=None))
        look.read(at_s)
    assert look.read(1.0).offered == Offered(requests=1.0, begun=10.0)


def test_another_server_at_an_address_has_another_key() -> None:
    of = pool()
    look = PoolLook(of, lambda: None)
    first = {each.key for each in look.read(0.0).servers}
    of.set_endpoints([ONE])
    of.set_endpoints([ONE, TWO])
    again = {each.key for each in look.read(0.0).servers}
    assert len(first & again) == 1
