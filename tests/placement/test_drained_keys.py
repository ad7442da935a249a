"""Where do sessions and prefixes go while their server drains, and do they come back?"""

from __future__ import annotations

import pytest

from extproc.pool.drain import By
from tests.placement.fleet import chat, fleet, serve, server, text


@pytest.mark.parametrize("profile", ["session", "prefix-hash"])
def test_only_the_keys_of_the_draining_server_move_and_they_come_back(profile: str) -> None:
    router = fleet(profile, 5)
    pool = router.pools[0]

    def homes() -> dict[int, int]:
        requests = {
            key: chat("hi" if profile == "session" else text(300, key), session=f"s{key}") for key in range(300)
        }
        return {key: serve(router, request) for key, request in requests.items()}

    before = homes()
    pool.drains.ask(server(router, 3), By.OPERATOR, 1.0)
    during = homes()
    assert 3 in before.values()
    assert 3 not in during.values()
    assert all(during[key] == home for key, home in before.items() if home != 3)
    assert len({during[key] for key, home in before.items() if home == 3}) > 1, "they are spread"
    pool.drains.cancel(server(router, 3), 2.0, By.OPERATOR)
    assert homes() == before


def test_what_a_cancelled_server_holds_is_not_forgotten() -> None:
    router = fleet("cache-aware", 2)
    said = text(4000, "a long document")
    home = serve(router, chat(said, session="a"), 1.0)
    pool = router.pools[0]
    pool.drains.ask(server(router, home), By.OPERATOR, 2.0)
    assert serve(router, chat(text(4000, "another"), session="b"), 3.0) != home
    pool.drains.cancel(server(router, home), 4.0, By.OPERATOR)
    assert serve(router, chat(said + " more", session="c"), 5.0) == home
