"""How is a fault of our own told in the log, where a client's words may be in its text?

The text of an exception may hold what was being read: `int("...")` quotes it, `KeyError` is it. So the log gets its
type and the lines of code that it passed, of its causes too, which is what finds a bug; not its text, but of those
that speak of names in the code.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

_OF_CODE = (AttributeError, NameError, ImportError)


def log_bug(log: logging.Logger, words: str, error: BaseException) -> None:
    """At level error, as a message and its traceback."""
    if log.isEnabledFor(logging.ERROR):
        record = log.makeRecord(log.name, logging.ERROR, __file__, 0, "%s", (words,), None)
        record.exc_text = "\n".join(_lines(error))
        log.handle(record)


def log_of_loop(_loop: object, context: Mapping[str, Any]) -> None:
    """For `loop.set_exception_handler`: asyncio's own prints what its callbacks were called with."""
    log, words = logging.getLogger("asyncio"), str(context.get("message", "a fault on the event loop"))
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_bug(log, words, error)
    else:
        log.error("%s", words)


class WithoutText(logging.Filter):
    """For the logger of a library that logs the exceptions of its peers: the same for them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.exc_info, record.exc_text = None, "\n".join(_lines(error))
        return True


def _lines(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        for frame, line in traceback.walk_tb(found.__traceback__):
            code = frame.f_code
            yield f"  {code.co_filename}:{line} in {code.co_qualname}"
        yield f"{type(found).__module__}.{type(found).__qualname__}" + (f": {found}" if type(found) in _OF_CODE else "")
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if found is not None:
            yield "after"
