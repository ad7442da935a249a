"""One Envoy's subscription: requests in, answers out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from extproc.pb.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from extproc.pb.endpoint_pb2 import ClusterLoadAssignment
from extproc.server.assignment import TYPE_URL, Assignment, assignment, nobody, seen
from extproc.server.subscription import Subscription, UnknownTypeError
from tests.support.fleet import pool


def known(**sizes: int) -> dict[str, Assignment]:
    return {name: assignment(name, seen(pool(size).members, 0.0)) for name, size in sizes.items()}


def request(
    *names: str, version: str = "", nonce: str = "", refusal: str | None = None, type_url: str = TYPE_URL
) -> DiscoveryRequest:
    made = DiscoveryRequest(version_info=version, resource_names=names, type_url=type_url, response_nonce=nonce)
    made.node.id = "envoy-1"
    if refusal is not None:
        made.error_detail.code, made.error_detail.message = 3, refusal
    return made


def told(raw: bytes | None) -> DiscoveryResponse:
    assert raw is not None, "an answer was due"
    response = DiscoveryResponse.FromString(raw)
    assert response.type_url == TYPE_URL
    assert response.version_info
    assert response.nonce
    return response


def hosts(response: DiscoveryResponse) -> dict[str, int]:
    found = [ClusterLoadAssignment.FromString(each.value) for each in response.resources]
    assert {each.type_url for each in response.resources} <= {TYPE_URL}
    return {each.cluster_name: sum(len(locality.lb_endpoints) for locality in each.endpoints) for each in found}


def subscribed(*names: str, version: str = "") -> Subscription:
    made = Subscription()
    assert made.receive(request(*names, version=version))
    return made


def accept(subscription: Subscription, response: DiscoveryResponse, *names: str) -> None:
    assert subscription.receive(request(*names, version=response.version_info, nonce=response.nonce))


def test_nothing_is_said_before_something_is_asked() -> None:
    assert Subscription().answer(known(vllm=2)) is None


def test_the_first_request_is_answered_and_its_acceptance_is_not() -> None:
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=2)))
    assert hosts(first) == {"vllm": 2}
    accept(subscription, first, "vllm")
    assert subscription.answer(known(vllm=2)) is None
    assert (subscription.accepted, subscription.node) == (first.version_info, "envoy-1")


def test_a_change_is_said_once_under_a_new_version_and_nonce() -> None:
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=2)))
    second = told(subscription.answer(known(vllm=3)))
    assert hosts(second) == {"vllm": 3}
    assert (second.version_info, second.nonce) != (first.version_info, first.nonce)
    assert second.nonce != first.nonce
    assert subscription.answer(known(vllm=3)) is None


def test_what_was_changed_back_before_it_was_said_is_not_said() -> None:
    subscription = subscribed("vllm")
    fleet = known(vllm=2)
    told(subscription.answer(fleet))
    fleet |= known(vllm=3)
    fleet |= known(vllm=2)
    assert subscription.answer(fleet) is None


def test_a_version_of_an_earlier_stream_does_not_suppress_the_first_answer() -> None:
    """A restarted service gives equal content an equal version; Envoy is answered all the same."""
    version = known(vllm=2)["vllm"].version
    subscription = subscribed("vllm", version=version)
    assert told(subscription.answer(known(vllm=2))).version_info == version


def test_the_first_request_of_a_stream_may_carry_an_old_nonce() -> None:
    subscription = Subscription()
    assert subscription.receive(request("vllm", version="7", nonce="12"))
    assert hosts(told(subscription.answer(known(vllm=1)))) == {"vllm": 1}


def test_a_refused_answer_is_kept_and_not_sent_again_before_it_changes() -> None:
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=1)))
    assert subscription.receive(request("vllm", nonce=first.nonce, refusal="malformed"))
    assert (subscription.refusal, subscription.accepted) == ("malformed", None)
    assert subscription.answer(known(vllm=1)) is None
    second = told(subscription.answer(known(vllm=2)))
    accept(subscription, second, "vllm")
    assert (subscription.refusal, subscription.accepted) == (None, second.version_info)


def test_a_refusal_is_told_from_an_acceptance_by_its_detail_and_not_by_its_version() -> None:
    """A cluster that came later may make Envoy refuse an answer of a version that it holds already."""
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=1)))
    assert subscription.receive(request("vllm", version=first.version_info, nonce=first.nonce, refusal="no"))
    assert (subscription.refusal, subscription.accepted) == ("no", None)


def test_a_request_that_crossed_with_an_answer_is_passed_over() -> None:
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=1)))
    second = told(subscription.answer(known(vllm=2)))
    assert not subscription.receive(request(version=first.version_info, nonce=first.nonce, refusal="old"))
    assert subscription.names == {"vllm"}
    assert subscription.refusal is None
    accept(subscription, second, "vllm")
    assert subscription.accepted == second.version_info


def test_several_clusters_on_one_stream() -> None:
    subscription = subscribed("chat", "embeddings")
    first = told(subscription.answer(known(chat=2, embeddings=1, other=9)))
    assert hosts(first) == {"chat": 2, "embeddings": 1}
    assert [each.type_url for each in first.resources] == [TYPE_URL] * 2
    accept(subscription, first, "chat", "embeddings")
    assert subscription.answer(known(chat=2, embeddings=1, other=10)) is None
    assert hosts(told(subscription.answer(known(chat=2, embeddings=2)))) == {"chat": 2, "embeddings": 2}


def test_a_cluster_that_is_added_is_told_of_although_it_has_not_changed() -> None:
    fleet = known(chat=2, embeddings=1)
    subscription = subscribed("chat")
    first = told(subscription.answer(fleet))
    accept(subscription, first, "chat", "embeddings")
    second = told(subscription.answer(fleet))
    assert hosts(second)["embeddings"] == 1
    accept(subscription, second, "chat")
    assert subscription.answer(fleet) is None
    accept(subscription, second, "chat", "embeddings")
    assert hosts(told(subscription.answer(fleet)))["embeddings"] == 1, "it was dropped in between"


@pytest.mark.parametrize("names", [(), ("*",)], ids=["no name ever", "the star"])
def test_a_wildcard_is_all_pools(names: Iterable[str]) -> None:
    subscription = subscribed(*names)
    first = told(subscription.answer(known(chat=2, embeddings=1)))
    assert hosts(first) == {"chat": 2, "embeddings": 1}
    accept(subscription, first, *names)
    assert subscription.answer(known(chat=2, embeddings=1)) is None
    assert hosts(told(subscription.answer(known(chat=2, embeddings=1, more=1))))["more"] == 1


def test_no_names_after_some_are_the_end_of_interest() -> None:
    subscription = subscribed("vllm")
    first = told(subscription.answer(known(vllm=1)))
    accept(subscription, first)
    assert subscription.answer(known(vllm=2)) is None


def test_an_unknown_cluster_is_told_to_be_empty_so_that_it_does_not_wait() -> None:
    subscription = subscribed("vlm")
    response = told(subscription.answer(known(vllm=1)))
    assert hosts(response) == {"vlm": 0}
    assert response.resources[0].value == nobody("vlm").resource
    accept(subscription, response, "vlm", "later")
    assert hosts(told(subscription.answer(known(vllm=1)))) == {"vlm": 0, "later": 0}


def test_an_unknown_cluster_keeps_the_hosts_that_it_has_from_before() -> None:
    subscription = subscribed("vlm", version="of another process")
    assert subscription.answer(known(vllm=1)) is None


def test_of_a_pool_that_is_not_known_yet_nothing_is_said() -> None:
    subscription = subscribed("vllm")
    assert subscription.answer({}, ("vllm",)) is None
    assert hosts(told(subscription.answer(known(vllm=2)))) == {"vllm": 2}


def test_who_holds_nothing_waits_only_so_long() -> None:
    fresh, held = subscribed("vllm"), subscribed("vllm", version="1")
    assert hosts(told(fresh.answer({}, ("vllm",), overdue=True))) == {"vllm": 0}
    assert held.answer({}, ("vllm",), overdue=True) is None
    assert hosts(told(held.answer(known(vllm=2)))) == {"vllm": 2}


def test_another_type_of_resource_is_refused() -> None:
    with pytest.raises(UnknownTypeError, match=r"not type\.googleapis\.com/envoy"):
        Subscription().receive(request(type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster"))
    assert Subscription().receive(request("vllm", type_url=""))
