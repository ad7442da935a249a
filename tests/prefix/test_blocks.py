"""Prompts cut into chained hashes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix.blocks import (
    BLOCK_BYTES,
    LADDER,
    MAX_BLOCKS,
    block_hashes,
    blocks_within,
    chain,
    end_mark,
    root_of,
    units_of,
)


def hashes(prompt: bytes, **options: object) -> list[int]:
    return block_hashes(prompt, **{"model": "m", "block_bytes": 4, **options})  # type: ignore[arg-type]


def test_only_full_blocks_have_a_hash() -> None:
    """case e12: a prompt shorter than a block matches nothing"""
    assert hashes(b"abc") == []
    assert len(hashes(b"abcdefgh")) == 2
    assert hashes(b"abcdefgh") == hashes(b"abcdefghi")


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_prompts_share_the_blocks_they_begin_with_and_no_others(one: bytes, other: bytes) -> None:
    shared = (
        next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))) // 4
    )
    first, second = hashes(one), hashes(other)
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_a_growing_prompt_keeps_its_full_blocks(pieces: list[bytes]) -> None:
    before: list[int] = []
    for end in range(len(pieces) + 1):
        now = hashes(b"".join(pieces[:end]))
        assert now[: len(before)] == before
        before = now


def test_a_long_prompt_that_grows_keeps_all_but_its_tail() -> None:
    text = os.urandom(700_000)
    before, now = block_hashes(text[:600_000], model="m"), block_hashes(text, model="m")
    assert now[: len(before)] == before
    assert 600_000 - units_of(len(before)) * BLOCK_BYTES < LADDER[-1][1] * BLOCK_BYTES


@pytest.mark.parametrize(
    "apart",
    [
        {"model": "n"},
        {"model": None},
        {"adapter": "a"},
        {"salt": "t1"},
        {"salt": "t2"},
        {"salt": ""},
        {"block_bytes": 5},
    ],
)
def test_model_adapter_salt_and_block_size_keep_prompts_apart(apart: dict[str, object]) -> None:
    """case c14"""
    text = b"a" * 40
    assert not set(hashes(text)) & set(hashes(text, **apart))
    assert hashes(text, **apart) == hashes(text, **apart)


def test_names_that_run_together_keep_prompts_apart() -> None:
    """case c14"""
    roots = [("ab", "c", None), ("a", "bc", None), ("abc", None, None), ("abc", "", None), ("a", "b", "c")]
    assert len({root_of(model=m, adapter=a, salt=s) for m, a, s in roots}) == len(roots)


def test_half_an_emoji_in_a_name_is_no_obstacle() -> None:
    """case c07"""
    assert hashes(b"abcd", model="\ud83d", salt="\ude00")


def test_processes_agree() -> None:
    """case e08: whatever PYTHONHASHSEED is"""
    code = "from extproc.prefix.blocks import block_hashes as b; print(b(bytes(600), model='m', salt='s'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_the_chain_is_bounded() -> None:
    """case e10: a block size of 1 does not multiply entries without bound"""
    assert len(hashes(bytes(100_000), block_bytes=1)) == MAX_BLOCKS
    assert len(hashes(bytes(100), max_blocks=3)) == 3
    with pytest.raises(ValueError, match="at least 1"):
        hashes(b"x", block_bytes=0)


@given(st.integers(0, MAX_BLOCKS))
def test_units_and_blocks_convert_both_ways(blocks: int) -> None:
    assert blocks_within(units_of(blocks)) == blocks
    assert blocks == 0 or blocks_within(units_of(blocks) - 1) == blocks - 1


def test_a_mark_stands_for_exactly_what_is_before_it() -> None:
    root = root_of(model="m", adapter=None, salt=None, block_bytes=4)
    text = b"abcdefghijkl"

    def mark(prompt: bytes, end: int) -> int | None:
        return end_mark(prompt, end, chain(prompt, root, block_bytes=4), root, block_bytes=4)

    marks = [mark(text, end) for end in range(len(text) + 1)]
    assert len(set(marks)) == len(text) + 1
    assert not set(marks) & set(chain(text, root, block_bytes=4))
    assert mark(text[:6], 6) == mark(text, 6)
    assert mark(b"abcdeX", 6) != mark(text, 6)
    long = bytes(30_000 * 4)
    assert mark(long, len(long)) is None
