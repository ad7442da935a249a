"""Has the configuration file changed, and can that be followed?

A file with an error keeps what runs, and is told as `extproc check` would tell it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from extproc.config.changes import changes
from extproc.config.check import check
from extproc.config.load import Kind, Loaded, load
from extproc.config.pools import is_eds
from extproc.config.problems import Problem, Severity, in_a_line
from extproc.config.settings import EndpointSettings, PoolSettings, Settings
from extproc.discovery.watched import Content, contents

log = logging.getLogger(__name__)

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Followed:
    """A file that a service was started with. `override`: what the command line does to the settings in it."""

    path: Path
    kind: Kind
    override: Callable[[Settings], Settings]


class ConfigFile:
    def __init__(
        self,
        followed: Followed,
        running: Settings,
        replace: Callable[[str, tuple[EndpointSettings, ...]], None],
        *,
        poll_s: float = _POLL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`replace` is called with the name of a pool and its new list."""
        self.failing: str | None = None  # why the file cannot be used now
        self.restart: tuple[str, ...] = ()  # settings in it that count only after a restart
        self._followed = followed
        self._running = running
        self._replace = replace
        self._poll_s = poll_s
        self._sleep = sleep
        self._told: frozenset[Problem] | None = None  # None: those of the start, which the command has told

    def status(self) -> dict[str, object]:
        """What `/status` shows of it."""
        return {"path": str(self._followed.path), "failing": self.failing, "after_restart": list(self.restart)}

    async def run(self) -> None:
        async with aclosing(contents(self._followed.path, self._poll_s, sleep=self._sleep)) as found:
            async for content in found:
                await self._take(content)

    async def _take(self, content: Content) -> None:
        path = str(self._followed.path)
        if content.error is not None:
            self._fail(f"{path}: {content.error}")
            return
        loaded, problems = await asyncio.to_thread(_read, content.raw, path, self._followed.kind)
        if loaded.settings is None:
            self._refuse(path, [problem for problem in loaded.problems if problem.severity is Severity.ERROR])
            return
        if loaded.kind != self._followed.kind:
            was, now = ("an", "no") if self._followed.kind == "envoy" else ("no", "an")
            self._fail(
                f"{path}: was {was} envoy.yaml and is {now} envoy.yaml now; a restart with the right option helps"
            )
            return
        if self._told is not None:
            _tell([problem for problem in problems if problem not in self._told])
        self._told = frozenset(problems)
        if self.failing is not None:
            log.info("%s is good again", path)
            self.failing = None
        self._apply(self._followed.override(loaded.settings), _with_a_list_in_envoy(loaded))

    def _apply(self, new: Settings, in_envoy: frozenset[str]) -> None:
        """`in_envoy`: the pools whose list Envoy reads too, from the same file."""
        found = changes(self._running, new)
        if found.restart != self.restart:
            self.restart = found.restart
            if found.restart:
                log.warning(
                    "%s has changed; this counts only after a restart: %s",
                    self._followed.path,
                    ", ".join(found.restart),
                )
        pools = dict(self._running.pools)
        for name, endpoints in found.endpoints.items():
            if name in in_envoy:
                self._warn_of_envoy(name, pools[name], endpoints)
            pools[name] = pools[name].model_copy(update={"endpoints": endpoints})
            self._replace(name, endpoints)
        self._running = self._running.model_copy(update={"pools": pools})

    def _warn_of_envoy(self, name: str, before: PoolSettings, endpoints: tuple[EndpointSettings, ...]) -> None:
        known = {endpoint.address for endpoint in before.endpoints}
        new = [endpoint.address for endpoint in endpoints if endpoint.address not in known]
        if new:
            log.warning(
                "%s has changed; pool %s has new: %s. Envoy reads its file only when it starts, and follows no picks of"
                " these before that: restart it, or have it told of servers by EDS",
                self._followed.path,
                name,
                ", ".join(new),
            )

    def _refuse(self, path: str, errors: Sequence[Problem]) -> None:
        reason = in_a_line(errors)
        if reason != self.failing:
            _tell(errors)
            log.warning("%s has changed and cannot be used, because of the errors above; what runs is kept", path)
        self.failing = reason

    def _fail(self, reason: str) -> None:
        if reason != self.failing:
            log.warning("%s; what runs is kept", reason)
        self.failing = reason


def _with_a_list_in_envoy(loaded: Loaded) -> frozenset[str]:
    if loaded.kind != "envoy" or loaded.tree is None:
        return frozenset()
    clusters = loaded.tree.list_at("static_resources", "clusters")
    names = {name.text for cluster in clusters if not is_eds(cluster) and (name := cluster.get("name")) is not None}
    return frozenset(name for name in names if name)


def _tell(problems: Sequence[Problem]) -> None:
    """As `extproc check` does."""
    for problem in problems:
        log.warning("%s: %s [%s]", problem.severity, problem, problem.code)


def _read(raw: bytes, name: str, kind: Kind) -> tuple[Loaded, tuple[Problem, ...]]:
    """The file, and all that is wrong with it if it can be used."""
    loaded = load(raw, name)
    return loaded, check(loaded) if loaded.settings is not None and loaded.kind == kind else ()
