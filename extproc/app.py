"""The composition root: everything is built here, started, watched, and ended in order.

Start: the port opens at once (Envoy's health check needs an answer), but the service says "not ready" until the
members of all pools are known (or their source fails) and one is seen to serve and its load is known, or
`ready_wait_s` has passed: picks before that would be blind. Once ready it stays so: when all samples are stale it
still knows its own requests in flight, and Envoy without it knows less.
End: first "not ready", while requests are still served; then the listener closes; then open exchanges end or reach
their bound. A request whose stream is cut by our end goes on in Envoy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from aiohttp import web

from extproc import __version__
from extproc.admin import explain
from extproc.admin import http as admin_http
from extproc.admin.autoscale_metrics import AutoscaleCollector
from extproc.admin.drain_file import DrainFile
from extproc.admin.drains import DrainDesk
from extproc.admin.metrics import RouterCollector, registry
from extproc.admin.status import status
from extproc.autoscaling import Autoscaling
from extproc.config.settings import DrainSettings, EndpointSettings, PoolSettings, Settings
from extproc.discovery.choose import source_of
from extproc.discovery.config_file import ConfigFile, Followed
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSource
from extproc.endpoint import Endpoint, format_host, split_host_port
from extproc.pool.pool import Pool
from extproc.router import PoolPlan, Router
from extproc.rpc.server import Server
from extproc.scheduling.profiles import PROFILES
from extproc.scheduling.shedding import ShedRule
from extproc.server import access_log, eds, health, keda, listener, processor
from extproc.sinks import ModelsSink, PoolSink
from extproc.telemetry.loops import EndpointLoops
from extproc.telemetry.models import ModelsPoller
from extproc.telemetry.poller import Poller
from extproc.telemetry.prober import Prober
from extproc.unknown import NamedBy

log = logging.getLogger(__name__)

_DRAINS_TICK_S = 0.1  # how soon it is noticed that a drain has come to its end
_STREAMS_CHECK_S = 0.05  # how soon the end of the last open exchange is noticed at shutdown
_LETTING_GO_S = 0.5  # for the ends of thousands of exchanges to be written
# How long a request waits for the servers to say whether they serve its model after all, before it is refused. Most
# answer within milliseconds, a busy one takes tenths of a second; Envoy's message_timeout is 1 s as shipped. As
# long it waits for the first members of its pool.
_MODELS_WAIT_S = 0.5
# A list of models older than so many intervals is no ground to refuse a request, or not believed at all.
_REFUSE_WITHIN, _BELIEVE_WITHIN = 2, 3


class App:
    """One service process. `run` it once."""

    def __init__(
        self, settings: Settings, *, followed: Followed | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`followed`: the file of the settings, whose changes are followed while the service runs.

        Raises ListenError for a file named in a `scrape` section, or as `drain.state_file`, that cannot be used, and
        for what a pool's discovery needs and is not installed.
        """
        self.settings = settings
        self.grpc_address = ""  # host:port, once started
        self.admin_address = ""  # host:port, once started
        self._clock = clock
        self._started_s = clock()
        self._stopping = False
        self._was_ready = False
        self._process = secrets.token_hex(8)  # by which peers tell this process from others
        # Pick ids come back through Envoy, perhaps to a successor of this process: the prefix tells ours apart.
        self.router = Router(
            [_plan(name, pool, settings, time.time() - clock()) for name, pool in settings.pools.items()],
            default_pool=settings.default_pool,
            rng=Random(),
            id_prefix=f"{secrets.token_hex(4)}-",
        )
        self._members_known = {name: asyncio.Event() for name in settings.pools}  # set with the first members
        self._model_pollers: dict[str, ModelsPoller] = {}  # of the pools whose servers are asked
        try:
            for name, pool in settings.pools.items():
                models = pool.models or settings.models
                if models.enabled:
                    sink = ModelsSink(self.router.plans[name].pool)
                    self._model_pollers[name] = ModelsPoller(models, pool.scrape or settings.scrape, sink, clock)
            self._pollers = {
                name: Poller(
                    pool.scrape or settings.scrape,
                    PoolSink(self.router, self.router.plans[name].pool, clock, self._model_pollers.get(name)),
                    clock,
                )
                for name, pool in settings.pools.items()
            }
            self._probers = {
                name: Prober(
                    pool.scrape or settings.scrape, PoolSink(self.router, self.router.plans[name].pool, clock), clock
                )
                for name, pool in settings.pools.items()
            }
            self._sources = {name: source_of(pool) for name, pool in settings.pools.items()}
            self._autoscaling = Autoscaling(
                self.router, settings, process=self._process, clock=clock, counting=lambda: not self._stopping
            )
        except ValueError as error:
            raise listener.ListenError(str(error)) from error
        self._config_file = ConfigFile(followed, settings, self._relist) if followed is not None else None
        self.router.unknown.on_new = _warn_of_unknown
        self._drains = _drain_desk(self.router, settings.drain, clock)
        self._access_log = access_log.AccessLogReceiver(self.router, clock)
        self._eds = self._discovery_for_envoy()
        self._processor = processor.Processor(
            self.router,
            max_body_bytes=settings.max_body_bytes,
            close_early=self._close_early,
            look_again=self._look_again,
            clock=clock,
        )
        self._keda = keda.KedaScaler(self._autoscaling)
        self._registry = registry(
            RouterCollector(
                self.router,
                self._service_counts,
                self._processor.decisions.cumulative,
                self.ready,
                clock,
                self._failing,
            ),
            AutoscaleCollector(self._autoscaling),
        )

    def ready(self) -> bool:
        """Whether Envoy may send requests here."""
        if not self._was_ready:
            now = self._clock()
            waited = now - self._started_s > self.settings.ready_wait_s
            # All pools: a request for one whose servers are not known yet is better off without us.
            known = all(plan.pool.known or self._sources[name].failing for name, plan in self.router.plans.items())
            self._was_ready = waited or (known and any(pool.can_pick(now) for pool in self.router.pools))
        return self._was_ready and not self._stopping

    def status(self) -> dict[str, Any]:
        """What `/status` shows."""
        counts = self._service_counts()
        return status(
            self.router,
            now=self._clock(),
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
            failing=self._failing(),
            config_file=self._config_file.status() if self._config_file is not None else None,
            eds=self._eds.status(),
            autoscale=self._autoscaling,
        )

    async def run(self, stop: asyncio.Event, started: Callable[[App], None] = lambda app: None) -> None:
        """Serve until `stop` is set, then end in order. `started` is called when both ports are open.

        Raises:
            listener.ListenError: a port cannot be opened.
            ExceptionGroup: a background task died of a bug.
        """
        server, self.grpc_address = listener.build(
            self.settings.grpc,
            self.settings.max_body_bytes,
            (
                processor.handlers(self._processor),
                access_log.handlers(self._access_log),
                eds.handlers(self._eds),
                keda.handlers(self._keda),
                health.handlers(health.Health(self.ready)),
            ),
        )
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(server.stop, 0)
            ending.push_async_callback((await self._start_admin()).cleanup)
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(coroutine, name=name) for name, coroutine in self._background().items()]
                self._announce()
                started(self)
                await stop.wait()
                self._stopping = True
                log.info("stopping: not ready any more; the listener closes in %g s", self.settings.shutdown_notice_s)
                await asyncio.sleep(self.settings.shutdown_notice_s)
                self._keda.let_go()
                await self._end_streams(server)
                for task in background:
                    task.cancel()
        log.info("stopped")

    async def _end_streams(self, server: Server) -> None:
        """Close the listener and wait for the open exchanges, at most `shutdown_grace_s`; then let go of those that
        Envoy can do without.

        Envoy's access log and those who watch our health hold their calls for ever: they are not waited for.
        """
        stopping = asyncio.create_task(server.stop(self.settings.shutdown_grace_s + _LETTING_GO_S))
        let_go_s = self._clock() + self.settings.shutdown_grace_s
        while True:
            await asyncio.sleep(_STREAMS_CHECK_S)  # first: a call that was just accepted shall be counted
            if self._clock() >= let_go_s:
                self._processor.let_go()
            if stopping.done() or not self._processor.open_streams:
                break
        await server.stop(0)
        await stopping

    def _background(self) -> dict[str, Any]:
        """The coroutines that run beside the request path, by task name."""
        coroutines: dict[str, Any] = {"readiness": self._log_readiness(), "drains": self._drains.watch(_DRAINS_TICK_S)}
        coroutines["eds"] = self._eds.run()
        coroutines |= self._autoscaling.background()
        if self._config_file is not None:
            coroutines["configuration"] = self._config_file.run()
        for name, source in self._sources.items():
            pollers: list[EndpointLoops] = [self._pollers[name]]
            coroutines[f"poll {name}"] = self._pollers[name].run()
            if name in self._model_pollers:
                pollers.append(self._model_pollers[name])
                coroutines[f"models {name}"] = self._model_pollers[name].run()
            if name in self._autoscaling.versions:
                pollers.append(self._autoscaling.versions[name])
            coroutines[f"probe {name}"] = self._probers[name].run()
            coroutines[f"discover {name}"] = self._discover(self.router.plans[name].pool, source, pollers)
        return coroutines

    async def _discover(self, pool: Pool, source: EndpointSource, pollers: Sequence[EndpointLoops]) -> None:
        async with contextlib.aclosing(source.watch()) as endpoint_sets:
            async for endpoints in endpoint_sets:
                change = pool.set_endpoints(endpoints)
                self._members_known[pool.name].set()
                self._drains.appeared(pool)
                for poller in pollers:
                    poller.set_endpoints([member.endpoint for member in pool.members])
                log.info(
                    "pool %s: %d endpoints%s%s",
                    pool.name,
                    len(pool.members),
                    _listing(", new: ", change.added),
                    _listing(", gone: ", change.removed),
                )

    def _relist(self, pool: str, endpoints: tuple[EndpointSettings, ...]) -> None:
        """Give a pool whose servers are listed another list."""
        source = self._sources[pool]
        assert isinstance(source, ListedSource), "a pool with discovery has no list"
        source.replace(endpoints)

    async def _log_readiness(self) -> None:
        """One log line when requests may come."""
        while True:
            if self.ready():
                log.info("ready")
                return
            await asyncio.sleep(0.1)

    async def _start_admin(self) -> web.AppRunner:
        runner = web.AppRunner(
            admin_http.application(self._registry, self._answers(), max_body_bytes=self.settings.max_body_bytes),
            access_log=None,
            handle_signals=False,
        )
        await runner.setup()
        host, port = split_host_port(self.settings.admin.listen, lowest_port=0)
        try:
            await web.TCPSite(runner, host, port, reuse_port=False).start()
        except OSError as error:
            await runner.cleanup()
            raise listener.ListenError(
                f"admin.listen: cannot open {self.settings.admin.listen} ({error.strerror}); is another process there?"
            ) from error
        self.admin_address = format_host(host, runner.addresses[0][1])
        return runner

    def _answers(self) -> admin_http.Answers:
        return admin_http.Answers(
            ready=self.ready,
            status=self.status,
            explain=lambda request: explain.explanation(self.router, request, self._clock()),
            decisions=lambda limit: explain.decisions(self.router, limit, self._clock()),
            drains=self._drains,
            autoscale=self._autoscaling,
            offered=self._offered,
        )

    def _announce(self) -> None:
        tls = self.settings.grpc.tls
        kind = "plaintext" if tls is None else "mutual TLS" if tls.client_ca_file else "TLS"
        log.info("gRPC on %s (%s), admin on http://%s", self.grpc_address, kind, self.admin_address)

    def _close_early(self) -> bool:
        mode = self.settings.exchange.response
        return self._access_log.connected > 0 if mode == "auto" else mode == "close"

    async def _look_again(self, pool: str) -> None:
        if not self.router.plans[pool].pool.known:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._members_known[pool].wait(), _MODELS_WAIT_S)
        elif pool in self._model_pollers:
            await self._model_pollers[pool].refresh(_MODELS_WAIT_S)

    def _discovery_for_envoy(self) -> eds.EndpointDiscovery:
        """What serves the pools' members to Envoy. Of pools of one service name the first counts."""
        names: dict[str, str] = {}
        for name, pool in self.settings.pools.items():
            names.setdefault(pool.service_name or name, name)
        return eds.EndpointDiscovery(
            {asked: self.router.plans[name].pool for asked, name in names.items()},
            failing=lambda asked: bool(self._sources[names[asked]].failing),
            clock=self._clock,
        )

    def _offered(self) -> dict[str, Any]:
        """What peers are told: the requests that came to this process since its start, by pool."""
        return {"id": self._process, "pools": {name: self.router.ledger.requests(name) for name in self.router.plans}}

    def _failing(self) -> dict[str, Mapping[str, str]]:
        return {name: source.failing for name, source in self._sources.items()}

    def _service_counts(self) -> dict[str, int]:
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
        }


def _plan(name: str, pool: PoolSettings, settings: Settings, unix_s: float) -> PoolPlan:
    scrape = pool.scrape or settings.scrape
    models = pool.models or settings.models
    scheduling = pool.scheduling or settings.scheduling
    return PoolPlan(
        Pool(
            name,
            stale_after_s=scrape.stale_after_s,
            models_stale_after_s=_BELIEVE_WITHIN * models.interval_s,
            probed=True,
            unix_s=unix_s,
        ),
        PROFILES[scheduling.profile],
        scheduling.hosts,
        max_blocks=scheduling.max_prefix_blocks,
        session_headers=scheduling.session_headers,
        session_fields=scheduling.session_fields,
        profile_header=scheduling.profile_header,
        shed=tuple(ShedRule(rule.waiting, rule.priority) for rule in scheduling.shed),
        priority_header=scheduling.priority_header,
        refuse_models_within_s=_REFUSE_WITHIN * models.interval_s if models.reject_unknown else None,
    )


def _drain_desk(router: Router, settings: DrainSettings, clock: Callable[[], float]) -> DrainDesk:
    """Raises ListenError for a state file that cannot be used."""
    file = None if settings.state_file is None else DrainFile(settings.state_file)
    try:
        return DrainDesk(
            router,
            settings.bounds,
            floor=settings.floor,
            server_requests=settings.server_requests,
            file=file,
            clock=clock,
        )
    except OSError as error:
        raise listener.ListenError(
            f"drain.state_file: cannot use {settings.state_file} ({error.strerror or error}); its directory must exist"
            " and be writable by this user, and it must be a file that can be replaced (not one that is mounted)"
        ) from error


def _warn_of_unknown(by: NamedBy, name: str) -> None:
    kind = "pool" if by is NamedBy.ROUTE_POOL else "profile"
    log.warning("a route names the %s %r, which there is not: its requests are routed as if it named none", kind, name)


def _listing(words: str, endpoints: tuple[Endpoint, ...]) -> str:
    return words + ", ".join(str(endpoint.address) for endpoint in endpoints) if endpoints else ""
