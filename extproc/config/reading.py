"""What does a file say before anything is made of it: its text, and what is wrong with its spelling?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from extproc.config import codes
from extproc.config.codes import Finding
from extproc.config.tree import Node, Remark, TreeError


def text_of(source: Path | str | bytes) -> str | Finding:
    """The text of a file (a Path), or of what was read of one; else why there is none."""
    try:
        raw = source.read_bytes() if isinstance(source, Path) else source
    except OSError as error:
        return Finding(codes.FILE_UNREADABLE, None, reason_of(error))
    except ValueError:  # a NUL in the name
        return Finding(codes.FILE_UNREADABLE, None, "is not a file name")
    return decode(raw) if isinstance(raw, bytes) else raw


def decode(raw: bytes) -> str | Finding:
    """The text of a file, without a byte order mark."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return Finding(codes.FILE_NOT_TEXT, Node("", line, None), "is not UTF-8 text")


def reason_of(error: OSError) -> str:
    """Why a file could not be read, for a sentence that begins with its name."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "is a directory"
    return f"cannot be read: {error.strerror or type(error).__name__}"


def not_yaml(error: TreeError, cure: str | None = None) -> Finding:
    """That a text is no YAML. `cure`: a better one than the error has."""
    place = Node("", error.line, None) if error.line is not None else None
    return Finding(codes.YAML_SYNTAX, place, error.message, cure=error.cure if cure is None else cure)


def repeated_keys(remarks: Iterable[Remark]) -> list[Finding]:
    """Those of the remarks that are about a key that stands there twice."""
    return [
        Finding(
            codes.YAML_DUPLICATE_KEY,
            Node(remark.path, remark.line, None),
            f"stands here again, first on line {remark.first_line}",
        )
        for remark in remarks
        if remark.first_line is not None
    ]
