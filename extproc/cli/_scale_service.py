"""How is a service of one or several processes asked, by their admin ports?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from extproc.actuator.advice import NoAdviceError, UnknownPoolError
from extproc.actuator.service import AwayError, RefusedError
from extproc.cli import _admin
from extproc.cli._admin import Admin


class AdminPorts:
    """As `extproc.actuator.service.Service`. What is asked once is asked of the first that answers; drains are every
    one's, since each routes to the servers."""

    def __init__(self, admins: Sequence[Admin]) -> None:
        self._admins = list(admins)

    def status(self) -> Any:
        return self._first(lambda admin: admin.ask("GET", "/status", {}))

    def recommendation(self, pool: str) -> Any:
        """Of the first that has one. Raises NoAdviceError (of a pool that has none ever: UnknownPoolError)."""
        path = f"/autoscale/v1/pools/{quote(pool, safe='')}"
        refused: list[_admin.RefusedError] = []
        for admin in self._admins:
            try:
                return self._first(lambda admin: admin.ask("GET", path, {}), [admin])
            except AwayError:
                if admin is self._admins[-1] and not refused:
                    raise
            except _admin.RefusedError as error:
                refused.append(error)
        unknown = [error for error in refused if error.status == 404]
        if unknown:
            raise UnknownPoolError(str(unknown[0]))
        raise NoAdviceError(f"the service recommends nothing now: {refused[0]}")

    def victim(self, pool: str) -> tuple[str, str]:
        try:
            found = self._first(lambda admin: admin.ask("GET", "/v1/drain-victim", {"pool": pool}))
        except _admin.RefusedError as error:
            raise RefusedError(str(error)) from None
        return str(found["endpoint"]), str(found["why"])

    def drain(self, pool: str, endpoint: str, deadline_s: float | None) -> Mapping[str, float]:
        query = {"pool": pool} | ({} if deadline_s is None else {"deadline_s": f"{deadline_s:.3f}"})
        answers = self._every(lambda admin: admin.drain("POST", endpoint, query))
        return {url: float(answer["service_started"]) for url, answer in answers.items() if answer is not None}

    def shown(self, pool: str, endpoint: str) -> Mapping[str, Mapping[str, Any] | None]:
        return self._every(lambda admin: admin.drain("GET", endpoint, {"pool": pool}))

    def undrain(self, pool: str, endpoint: str) -> None:
        self._every(lambda admin: admin.drain("DELETE", endpoint, {"pool": pool}))

    def _first(self, ask: Callable[[Admin], Any], admins: Sequence[Admin] | None = None) -> Any:
        """Raises AwayError, and _admin.RefusedError of the one that answers."""
        away: list[str] = []
        for admin in admins or self._admins:
            try:
                return ask(admin)
            except _admin.AwayError as error:
                away.append(str(error))
        raise AwayError("; ".join(away))

    def _every(self, ask: Callable[[Admin], Any]) -> dict[str, Any]:
        """The answers of all, by URL; None: it does not know the server. Raises AwayError, RefusedError."""
        answers: dict[str, Any] = {}
        for admin in self._admins:
            try:
                answers[admin.url] = ask(admin)
            except _admin.AwayError as error:
                raise AwayError(str(error)) from None
            except _admin.RefusedError as error:
                if error.status != 404:
                    raise RefusedError(str(error)) from None
                answers[admin.url] = None
        return answers
