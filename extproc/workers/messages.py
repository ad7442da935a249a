"""What do processes tell each other of requests, and in which bytes?

Bytes: one list in JSON, of messages that are lists, and after it the block hashes of all prompts, eight bytes each, in
the order of their messages. Both ends are of one version; `link` sees to that.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from extproc.decision import Completion
from extproc.endpoint import Address
from extproc.value import value

_PATH_CHARS = 200
_LENGTH = struct.Struct("!I")


@value
class Picked:
    """A request goes to a server."""

    pick_id: str
    pool: str
    hosts: tuple[Address, ...]  # the first choice, then its fallbacks
    uid: str | None  # of the first; see `Endpoint.uid`
    path: str  # without its query
    at_s: float  # monotonic clock, which is one for all processes of a machine
    uncached_tokens: float | None
    held_ratio: float  # the part of its prompt that the server holds, 0 to 1
    conversation: int | None  # the number of its session key
    max_tokens: int | None
    response_id: str | None
    stores: bool
    hashes: Sequence[int] = ()
    mark: int | None = None


@value
class Taught:
    """A server was sent a prompt, some time ago."""

    pool: str
    address: Address
    uid: str | None
    hashes: Sequence[int]
    mark: int | None


@value
class Ended:
    """The charge of a pick has ended."""

    pick_id: str


@value
class Completed:
    """The access log told this, to one of us."""

    completion: Completion


@value
class Answered:
    """A response begins, of this server and with this status."""

    pick_id: str
    served: Address | None
    status: int | None


@value
class Stored:
    """The server that serves a request keeps its response under this id."""

    pick_id: str
    response_id: str


@value
class Census:
    """Of the picks whose ids begin so, these are open; all others up to `upto` are over. None: all others are."""

    prefix: str
    upto: int | None
    numbers: tuple[int, ...]


Message = Picked | Taught | Ended | Completed | Answered | Stored | Census


def encode(messages: Iterable[Message]) -> bytes:
    rows: list[list[Any]] = []
    hashes = array("Q")
    for each in messages:
        match each:
            case Picked():
                rows.append(
                    [
                        "p",
                        each.pick_id,
                        each.pool,
                        [host.text for host in each.hosts],
                        each.uid,
                        plain(each.path.partition("?")[0][:_PATH_CHARS]),
                        each.at_s,
                        each.uncached_tokens,
                        each.held_ratio,
                        each.conversation,
                        each.max_tokens,
                        None if each.response_id is None else plain(each.response_id),
                        each.stores,
                        len(each.hashes),
                        each.mark,
                    ]
                )
                hashes.extend(each.hashes)
            case Taught():
                rows.append(["t", each.pool, each.address.text, each.uid, len(each.hashes), each.mark])
                hashes.extend(each.hashes)
            case Ended():
                rows.append(["e", each.pick_id])
            case Completed():
                rows.append(["c", *_row(each.completion)])
            case Answered():
                rows.append(["a", each.pick_id, None if each.served is None else each.served.text, each.status])
            case Stored():
                rows.append(["s", each.pick_id, plain(each.response_id)])
            case Census():
                rows.append(["o", each.prefix, each.upto, each.numbers])
    head = orjson.dumps(rows)
    if sys.byteorder == "big":
        hashes.byteswap()
    return b"".join((_LENGTH.pack(len(head)), head, hashes.tobytes()))


def decode(data: bytes) -> list[Message]:
    """Raises ValueError for what `encode` has not written."""
    try:
        return _decoded(data)
    except (LookupError, TypeError, struct.error) as error:
        raise ValueError(f"no messages: {type(error).__name__}: {error}") from error


def _decoded(data: bytes) -> list[Message]:
    (length,) = _LENGTH.unpack_from(data)
    rows = orjson.loads(memoryview(data)[_LENGTH.size : _LENGTH.size + length])
    hashes = array("Q")
    hashes.frombytes(memoryview(data)[_LENGTH.size + length :])
    if sys.byteorder == "big":
        hashes.byteswap()
    out: list[Message] = []
    at = 0

    def prompt(count: int) -> Sequence[int]:
        nonlocal at
        found = hashes[at : at + count]
        at += count
        if len(found) != count:
            raise ValueError("its hashes are cut off")
        return found

    for kind, *row in rows:
        match kind:
            case "p":
                out.append(_picked(row, prompt))
            case "t":
                pool, host, uid, count, mark = row
                out.append(Taught(pool, address(host), uid, prompt(count), mark))
            case "e":
                out.append(Ended(*row))
            case "c":
                out.append(Completed(_completion(row)))
            case "a":
                pick_id, served, status = row
                out.append(Answered(pick_id, None if served is None else address(served), status))
            case "s":
                out.append(Stored(*row))
            case "o":
                prefix, upto, numbers = row
                out.append(Census(prefix, upto, tuple(numbers)))
            case _:
                raise ValueError(f"no message is of kind {kind!r}")
    return out


def _picked(row: list[Any], prompt: Callable[[int], Sequence[int]]) -> Picked:
    pick_id, pool, hosts, uid, *between, count, mark = row
    return Picked(*[pick_id, pool, tuple([address(host) for host in hosts]), uid, *between, prompt(count), mark])


@lru_cache(maxsize=4096)  # a fleet's few addresses come again and again
def address(text: str) -> Address:
    return Address.parse(text)


def plain(text: str) -> str:
    """Without what UTF-8 cannot say: a stranger's JSON may have written half a character."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _row(told: Completion) -> list[Any]:
    return [
        told.pick_id if told.pick_id is None else plain(told.pick_id),
        None if told.served is None else told.served.text,
        told.final,
        told.status,
        told.flags,
        plain(told.details),
        told.attempts,
        told.duration_s,
        told.first_byte_s,
        plain(told.cluster),
        told.attempt_ended,
    ]


def _completion(row: list[Any]) -> Completion:
    pick_id, served, final, status, flags, details, attempts, duration_s, first_byte_s, cluster, attempt_ended = row
    return Completion(
        pick_id,
        None if served is None else address(served),
        final,
        status,
        tuple(flags),
        details,
        attempts,
        duration_s,
        first_byte_s,
        cluster,
        attempt_ended,
    )
