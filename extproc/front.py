"""What does Envoy talk to? The gRPC services of one process, behind one port: ext_proc, access log, discovery of
endpoints, health, and KEDA's scaler.

End: the listener closes; then open exchanges end or reach their bound. A request whose stream is cut by our end goes on
in Envoy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client.registry import Collector

from extproc.autoscale.latest import Latest
from extproc.config.settings import Settings
from extproc.router import Router
from extproc.rpc.server import Server
from extproc.server import access_log, eds, health, keda, listener, processor
from extproc.server.durations import Durations
from extproc.telemetry.tracing import Traces, sender_of

# What `counts` has: of ext_proc, the access log, and discovery.
COUNTED = (
    "streams",
    "open_streams",
    "undecodable_messages",
    "request_path_errors",
    "undecodable_log_messages",
    "access_log_entries",
    "access_log_connections",
    "eds_streams",
    "eds_pushes",
    "eds_refused",
)
_STREAMS_CHECK_S = 0.05  # how soon the end of the last open exchange is noticed at shutdown
_LETTING_GO_S = 0.5  # for the ends of thousands of exchanges to be written


class Front:
    """`open`, `start`, then `leave` or `close`; each once."""

    def __init__(
        self,
        router: Router,
        settings: Settings,
        *,
        ready: Callable[[], bool],
        look_again: Callable[[str], Awaitable[None]],
        failing: Callable[[], Mapping[str, Mapping[str, str]]],
        latest: Latest,
        clock: Callable[[], float],
    ) -> None:
        """`look_again`: see `Processor`. `failing`: by pool, what its discovery cannot find out.

        Raises ListenError: traces are wanted, and what they need is not there.
        """
        self.address = ""  # host:port, once open
        self._router = router
        self._settings = settings
        self._ready = ready
        self._failing = failing
        self._clock = clock
        self._server: Server | None = None
        self._access_log = access_log.AccessLogReceiver(router, clock)
        self._eds = self._discovery_for_envoy()
        self._traces = self._traces_as_set()
        self._processor = processor.Processor(
            router,
            max_body_bytes=settings.max_body_bytes,
            close_early=self._close_early,
            look_again=look_again,
            traces=self._traces,
            clock=clock,
        )
        self._keda = keda.KedaScaler(latest)

    @property
    def up(self) -> bool:
        """Whether there is somebody who can answer Envoy, once that has started."""
        return True

    def open(self) -> None:
        """Take the port; nobody is served yet. Raises ListenError."""
        self._server, self.address = listener.build(
            self._settings.grpc,
            self._settings.max_body_bytes,
            (
                processor.handlers(self._processor),
                access_log.handlers(self._access_log),
                eds.handlers(self._eds),
                keda.handlers(self._keda),
                health.handlers(health.Health(self._ready)),
            ),
        )

    async def start(self) -> None:
        assert self._server is not None, "it is open"
        await self._server.start()
        if self._traces is not None:
            self._traces.start()

    async def leave(self, notice_s: float, grace_s: float) -> None:
        """End in order: first for `notice_s` we say that we are not ready, and serve; then open exchanges have
        `grace_s` to end."""
        await asyncio.sleep(notice_s)
        self._keda.let_go()
        await self._end_streams(grace_s)

    async def close(self) -> None:
        """End at once."""
        if self._server is not None:
            await self._server.stop(0)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)

    def background(self) -> dict[str, Any]:
        """The coroutines that are to run beside the request path, by task name."""
        return {"eds": self._eds.run()}

    def counts(self) -> dict[str, int]:
        """Since the start, and of what is open now; see `admin.metrics`."""
        return {
            "streams": self._processor.streams,
            "open_streams": self._processor.open_streams,
            "undecodable_messages": self._processor.undecodable,
            "request_path_errors": self._processor.failures,
            "undecodable_log_messages": self._access_log.undecodable,
            "access_log_entries": self._access_log.entries,
            "access_log_connections": self._access_log.connected,
            "eds_streams": self._eds.streams,
            "eds_pushes": self._eds.pushes,
            "eds_refused": self._eds.refused,
        } | ({} if self._traces is None else {f"trace_spans_{k}": n for k, n in self._traces.counts().items()})

    @property
    def durations(self) -> Durations:
        """How long decisions took."""
        return self._processor.decisions

    def decisions(self) -> tuple[list[tuple[str, float]], float]:
        """How long decisions took; see `Durations.cumulative`."""
        return self._processor.decisions.cumulative()

    def eds_status(self) -> dict[str, Any]:
        """What `/status` shows of it."""
        return self._eds.status()

    def kill(self) -> None:
        """There is no other process to end."""

    def processes(self) -> None:
        """There are no others."""

    def collectors(self) -> list[Collector]:
        """For Prometheus, beside what it is told of every service."""
        return []

    async def _end_streams(self, grace_s: float) -> None:
        """Close the listener and wait for the open exchanges, at most `grace_s`; then let go of those that
        Envoy can do without.

        Envoy's access log and those who watch our health hold their calls for ever: they are not waited for.
        """
        assert self._server is not None, "it has started"
        stopping = asyncio.create_task(self._server.stop(grace_s + _LETTING_GO_S))
        let_go_s = self._clock() + grace_s
        while True:
            await asyncio.sleep(_STREAMS_CHECK_S)  # first: a call that was just accepted shall be counted
            if self._clock() >= let_go_s:
                self._processor.let_go()
            if stopping.done() or not self._processor.open_streams:
                break
        await self._server.stop(0)
        await stopping

    def _close_early(self) -> bool:
        mode = self._settings.exchange.response
        return self._access_log.connected > 0 if mode == "auto" else mode == "close"

    def _traces_as_set(self) -> Traces | None:
        wanted = self._settings.tracing
        if wanted is None:
            return None
        try:
            return Traces(wanted, sender_of(wanted), clock=self._clock)
        except ValueError as error:
            raise listener.ListenError(str(error)) from error

    def _discovery_for_envoy(self) -> eds.EndpointDiscovery:
        """What serves the pools' members to Envoy. Of pools of one service name the first counts."""
        names: dict[str, str] = {}
        for name, pool in self._settings.pools.items():
            names.setdefault(pool.service_name or name, name)
        return eds.EndpointDiscovery(
            {asked: self._router.plans[name].pool for asked, name in names.items()},
            failing=lambda asked: bool(self._failing().get(names[asked])),
            clock=self._clock,
        )
