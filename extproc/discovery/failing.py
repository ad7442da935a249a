"""Which names cannot be found out at present, and why?"""

from __future__ import annotations

import logging


class Failing:
    """Logs when a name begins to fail and when it is well again, not each time."""

    def __init__(self, log: logging.Logger) -> None:
        """`log`: of the source that asks."""
        self._log = log
        self._reasons: dict[str, str] = {}

    def reasons(self) -> dict[str, str]:
        return dict(self._reasons)

    def failed(self, name: str, reason: str, kept: str) -> None:
        """`kept`: what stands in for it, in words."""
        if name not in self._reasons:
            self._log.warning("cannot resolve %s: %s; %s", name, reason, kept)
        self._reasons[name] = reason

    def worked(self, name: str) -> None:
        if self._reasons.pop(name, None) is not None:
            self._log.info("%s resolves again", name)

    def forget(self, name: str) -> None:
        """Nobody asks for it any more."""
        self._reasons.pop(name, None)
