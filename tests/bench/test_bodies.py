"""Bodies are what the tables say: valid requests of the exact size, different, and sharing prefixes in groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.overhead import bodies


@pytest.mark.parametrize("size", [512, 1024, 4096, 40960])
def test_a_body_is_a_chat_completion_of_exactly_the_size(size: int) -> None:
    body = bodies.chat_body(size, 3)

    assert len(body) == size
    request = json.loads(body)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]


def prompt(index: int) -> str:
    text: str = json.loads(bodies.chat_body(4096, index))["messages"][1]["content"]
    return text


def common_length(one: str, other: str) -> int:
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def test_half_of_a_prompt_is_shared_within_a_group_and_not_beyond_it() -> None:
    inside = common_length(prompt(0), prompt(bodies.GROUP_SIZE - 1))
    across = common_length(prompt(0), prompt(bodies.GROUP_SIZE))

    assert 0.4 * len(prompt(0)) < inside < 0.6 * len(prompt(0))
    assert across < 100


def test_the_file_holds_the_bodies_one_after_the_other(tmp_path: Path) -> None:
    size = 409_600
    count = bodies.write_bodies(tmp_path / "bodies", size)

    content = (tmp_path / "bodies").read_bytes()
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert len(pieces) == count == bodies.body_count(size)
    assert len(set(pieces)) == count
    assert all(json.loads(piece) for piece in pieces)


def test_a_size_without_room_for_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="512"):
        bodies.chat_body(100, 0)
