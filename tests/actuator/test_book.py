"""Is it known after a crash what was under way, and does only one act?"""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.actuator.account import Account, Coming, Leaving, Pause, Retiring, decode, encode
from extproc.actuator.book import Book, BookError, LockedError

FULL = Account(
    starts=7,
    coming=(Coming(6, 10.5, ("10.0.0.1:8000",), "gpu-2:8000", cleared=True), Coming(7, 11.0, (), late=True)),
    retiring=Retiring("[fd00::1]:8000", 12.0, "fewer", False, Leaving.STOPPING, {"http://a:9003": 3.25}, 13.0),
    start_pause=Pause(2, 40.0),
    retire_pause=Pause(1, 20.0),
)


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    book = Book(tmp_path / "new" / "folder", "team/llama")
    with book:
        assert book.load() == Account()
        book.save(FULL)
    assert Book(tmp_path / "new" / "folder", "team/llama").load() == FULL
    assert decode(encode(Account())) == Account()


def test_only_one_process_acts_on_a_pool(tmp_path: Path) -> None:
    with Book(tmp_path, "vllm"):
        with pytest.raises(LockedError, match=r"another extproc scale \(process \d+, since .*\) acts on pool vllm"):
            Book(tmp_path, "vllm").__enter__()
        with Book(tmp_path, "other"):
            pass
    with Book(tmp_path, "vllm"):
        pass


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version": 1}', b'{"version": 1, "starts": 0, "coming": [3]}'])
def test_a_file_that_cannot_be_used_is_for_a_person(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "scale-vllm.json").write_bytes(text)
    with pytest.raises(BookError, match=r"cannot be used: .* then move the file away"):
        Book(tmp_path, "vllm").load()


def test_a_folder_that_cannot_be_written_is_told_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BookError, match="give a folder that can be written with --state"):
        Book(tmp_path / "file" / "folder", "vllm").__enter__()
