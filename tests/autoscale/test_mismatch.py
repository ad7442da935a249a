"""What of a load test does not fit the servers of a pool is said in words; what is not known is no difference."""

from __future__ import annotations

from extproc.autoscale.mismatch import mismatches
from extproc.autoscale.profile import Server
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from tests.support.fleet import address, pool

TESTED = Server(model="m", version="0.11.0", kv_tokens=16_000)


def fleet(models: set[str] | None = None, *, blocks: int | None = None) -> Pool:
    """Two servers; the second one differs."""
    made = pool(2)
    for number, names, size in ((1, {"m", "adapter"}, 1000), (2, models, blocks)):
        made.observe(address(number), LoadSample(1.0, running=0.0, block_size_tokens=16, kv_blocks=size))
        if names is not None:
            made.told_models(address(number), frozenset(names), 1.0)
    return made


def test_servers_like_the_tested_one_and_those_that_do_not_tell_give_no_warning() -> None:
    assert mismatches(TESTED, pool(2).members, {}) == ()
    assert mismatches(TESTED, fleet().members, {address(1): "0.11.0"}) == ()
    assert mismatches(TESTED, fleet({"m"}, blocks=950).members, {}) == (), "a little less memory was left"
    assert mismatches(Server(model="m"), fleet({"m"}, blocks=1).members, {address(1): "9"}) == ()


def test_each_thing_that_differs_is_one_sentence_with_the_first_server() -> None:
    found = mismatches(TESTED, fleet({"x", "y"}, blocks=500).members, {address(1): "0.12.0", address(2): "0.13.0"})
    assert found == (
        'the profile was made with the model "m", and 10.0.0.2:8000 serves x, y',
        "the profile was made with room for 16,000 tokens in the KV cache, and 10.0.0.2:8000 has room for 8,000",
        "the profile was made with version 0.11.0 of the engine, and 10.0.0.1:8000 runs 0.12.0",
    )


def test_the_room_is_that_of_all_engines_of_a_server() -> None:
    of = pool(1)
    of.observe(address(1), LoadSample(1.0, running=0.0, block_size_tokens=16, kv_blocks=500, engines=2))
    assert mismatches(TESTED, of.members, {}) == ()
