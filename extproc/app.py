"""The composition root: everything is built here, started, watched, and ended in order.

Start: the port opens at once (Envoy's health check needs an answer), but the service says "not ready" until the
members of all pools are known (or their source fails) and one is seen to serve and its load is known, or
`ready_wait_s` has passed: picks before that would be blind. Once ready it stays so: when all samples are stale it
still knows its own requests in flight, and Envoy without it knows less.
End: first "not ready", while requests are still served; then the listener closes; then open exchanges end or reach
their bound. A request whose stream is cut by our end goes on in Envoy.

What Envoy talks to is the `Front`: in this process, or, with several, in the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from prometheus_client.registry import Collector

from extproc import __version__
from extproc.admin import autoscale_pages, explain, status_history, status_view
from extproc.admin import http as admin_http
from extproc.admin.autoscale_metrics import AutoscaleCollector
from extproc.admin.guard import Guard
from extproc.admin.metrics import RouterCollector, registry
from extproc.admin.port import AdminPort, open_port
from extproc.admin.status import status
from extproc.admin.status_workers import with_workers
from extproc.admin.token import TokenError
from extproc.assembly import router_of
from extproc.config.settings import Settings
from extproc.discovery.config_file import Followed
from extproc.front import Front
from extproc.keeping import Keeper
from extproc.readiness import Readiness
from extproc.server import listener
from extproc.sinks import Heard
from extproc.tls import TlsFileError, words

log = logging.getLogger(__name__)


class Fronts(Protocol):
    """What Envoy talks to; `Front` says what each is for."""

    @property
    def address(self) -> str: ...
    @property
    def up(self) -> bool: ...
    def open(self) -> None: ...
    async def start(self) -> None: ...
    async def leave(self, notice_s: float, grace_s: float) -> None: ...
    async def close(self) -> None: ...
    def background(self) -> dict[str, Any]: ...
    def counts(self) -> dict[str, int]: ...
    def decisions(self) -> tuple[list[tuple[str, float]], float]: ...
    def eds_status(self) -> dict[str, Any]: ...
    def processes(self) -> list[dict[str, Any]] | None: ...
    def collectors(self) -> list[Collector]: ...
    def kill(self) -> None: ...


class App:
    """One service process. `run` it once."""

    def __init__(
        self,
        settings: Settings,
        *,
        followed: Followed | None = None,
        clock: Callable[[], float] = time.monotonic,
        fronts: Callable[[App], Fronts] | None = None,
        heard: Heard | None = None,
    ) -> None:
        """`followed`: the file of the settings, whose changes are followed while the service runs. `fronts`: makes what
        Envoy talks to; None: a `Front`. `heard`: see `Keeper`.

        Raises ListenError for a file named in a `scrape` section, or as `drain.state_file`, that cannot be used, and
        for what a pool's discovery needs and is not installed.
        """
        self.settings = settings
        self.admin_address = ""  # host:port, once started
        self.clock = clock
        self._started_s = clock()
        self._history = status_history.History()
        self._stopping = False
        self._process = secrets.token_hex(8)  # by which peers tell this process from others
        self.router = router_of(settings, clock)
        self.keeper = Keeper(
            self.router,
            settings,
            followed=followed,
            process=self._process,
            counting=lambda: not self._stopping,
            clock=clock,
            heard=heard,
        )
        self._autoscaling = self.keeper.autoscaling
        self._readiness = Readiness(self.router, lambda: self.keeper.known, wait_s=settings.ready_wait_s, clock=clock)
        self.front: Fronts = self._front() if fronts is None else fronts(self)
        self._registry = registry(
            RouterCollector(
                self.router,
                self.front.counts,
                self.front.decisions,
                self.ready,
                clock,
                lambda: self.keeper.failing,
            ),
            AutoscaleCollector(self._autoscaling),
            *self.front.collectors(),
        )

    @property
    def grpc_address(self) -> str:
        """host:port, once started."""
        return self.front.address

    def ready(self) -> bool:
        """Whether Envoy may send requests here."""
        return self._readiness() and self.front.up and not self._stopping

    def status(self) -> dict[str, Any]:
        """What `/status` shows."""
        counts = self.front.counts()
        shown = status(
            self.router,
            now=self.clock(),
            ready=self.ready(),
            started_s=self._started_s,
            version=__version__,
            streams={
                "total": counts["streams"],
                "open": counts["open_streams"],
                "undecodable": counts["undecodable_messages"],
                "errors": counts["request_path_errors"],
            },
            access_log={
                "connected": counts["access_log_connections"],
                "entries": counts["access_log_entries"],
                "undecodable": counts["undecodable_log_messages"],
            },
            failing=self.keeper.failing,
            config_file=None if self.keeper.config_file is None else self.keeper.config_file.status(),
            eds=self.front.eds_status(),
            autoscale=self._autoscaling,
            history=self._history,
        )
        return with_workers(shown, self.front.processes())

    def view(self, since: float | None = None) -> dict[str, Any]:
        """What the status page shows, with the history since that Unix time; None: the last hour."""
        return status_view.view(
            self.status(),
            explain.decisions(self.router, status_view.PICKS_SHOWN, self.clock()),
            {name: autoscale_pages.view(self._autoscaling, name) for name in self._autoscaling.names},
            self._history.since(since),
        )

    def _look(self) -> None:
        streams = self.front.counts()["streams"]
        self._history.look(
            self.router, now=self.clock(), unix_s=time.time(), streams=streams, autoscale=self._autoscaling
        )

    async def run(self, stop: asyncio.Event, started: Callable[[App], None] = lambda app: None) -> None:
        """Serve until `stop` is set, then end in order. `started` is called when both ports are open.

        Raises:
            listener.ListenError: a port cannot be opened.
            ExceptionGroup: a background task died of a bug.
        """
        self.front.open()
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(self.front.close)
            ending.push_async_callback((await self._start_admin()).close)
            await self.front.start()
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(coroutine, name=name) for name, coroutine in self._background().items()]
                self._announce()
                started(self)
                await stop.wait()
                self._stopping = True
                log.info("stopping: not ready any more; the listener closes in %g s", self.settings.shutdown_notice_s)
                await self.front.leave(self.settings.shutdown_notice_s, self.settings.shutdown_grace_s)
                for task in background:
                    task.cancel()
        log.info("stopped")

    def _background(self) -> dict[str, Any]:
        """The coroutines that run beside the request path, by task name."""
        own = {"readiness": self._log_readiness(), "history": status_history.keep(self._look)}
        return own | self.keeper.background() | self.front.background()

    async def _log_readiness(self) -> None:
        """One log line when requests may come."""
        while True:
            if self.ready():
                log.info("ready")
                return
            await asyncio.sleep(0.1)

    async def _start_admin(self) -> AdminPort:
        settings = self.settings.admin
        try:
            guard = Guard.of(settings)
            pages = admin_http.application(
                self._registry,
                self._answers(),
                max_body_bytes=self.settings.max_body_bytes,
                guard=guard,
            )
            opened = await open_port(settings, pages)
        except (TokenError, TlsFileError) as error:
            raise listener.ListenError(str(error)) from error
        except OSError as error:
            raise listener.ListenError(
                f"admin.listen: cannot open {settings.listen} ({error.strerror}); is another process there?"
            ) from error
        self.admin_address = opened.address
        if guard.nobody_may_act:
            log.info("admin: others can reach the port, and there is no token: servers may drain themselves, no more")
        return opened

    def _answers(self) -> admin_http.Answers:
        return admin_http.Answers(
            ready=self.ready,
            status=self.status,
            explain=lambda request: explain.explanation(self.router, request, self.clock()),
            decisions=lambda limit: explain.decisions(self.router, limit, self.clock()),
            drains=self.keeper.drains,
            autoscale=self._autoscaling,
            offered=self._offered,
            view=self.view,
        )

    def _announce(self) -> None:
        grpc, admin = self.settings.grpc, self.settings.admin
        scheme = "http" if admin.tls is None else "https"
        log.info("gRPC on %s (%s), admin on %s://%s", self.grpc_address, words(grpc.tls), scheme, self.admin_address)

    def _front(self) -> Front:
        return Front(
            self.router,
            self.settings,
            ready=self.ready,
            look_again=self.keeper.look_again,
            failing=lambda: self.keeper.failing,
            latest=self._autoscaling,
            clock=self.clock,
        )

    def _offered(self) -> dict[str, Any]:
        """What peers are told: the requests that came to this process since its start, by pool."""
        return {"id": self._process, "pools": {name: self.router.ledger.requests(name) for name in self.router.plans}}
