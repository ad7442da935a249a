"""Where does what is heard of servers go? From the loops of `telemetry` to the router and its pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from extproc.endpoint import Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.router import Router
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.models import ModelsPoller
from extproc.telemetry.prober import Probe

# A broken page or a bad certificate is an answer too: somebody is there, and may well serve requests.
_ANSWERED = frozenset({FailureKind.HTTP_STATUS, FailureKind.BROKEN, FailureKind.TLS})


class Heard(Protocol):
    """Is told what was heard of servers, by pool, after the pool was. On the event loop; it must not wait."""

    def members(self, pool: str, endpoints: Sequence[Endpoint]) -> None:
        """These are all, as they are now."""

    def sample(self, pool: str, endpoint: Endpoint, sample: LoadSample) -> None: ...

    def failure(self, pool: str, endpoint: Endpoint, failure: ScrapeFailure) -> None: ...

    def probe(self, pool: str, endpoint: Endpoint, probe: Probe) -> None: ...

    def models(self, pool: str, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None: ...

    def no_models(self, pool: str, endpoint: Endpoint, failure: ScrapeFailure) -> None: ...


class PoolSink:
    """Hands the results of poller and prober to the router."""

    def __init__(
        self,
        router: Router,
        pool: Pool,
        clock: Callable[[], float],
        models: ModelsPoller | None = None,
        heard: Heard | None = None,
    ) -> None:
        """`models` is told when a server has come up or was restarted: it may serve something else. `heard`: is told
        everything."""
        self._router = router
        self._pool = pool
        self._clock = clock
        self._models = models
        self._heard = heard

    def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
        anew = self._router.observe(self._pool.name, endpoint.address, sample, self._clock())
        if anew and self._models is not None:
            self._models.ask_again(endpoint.address)
        if self._heard is not None:
            self._heard.sample(self._pool.name, endpoint, sample)

    def on_failure(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self._pool.scrape_failed(
            endpoint.address,
            f"{failure.kind}: {failure.detail}",
            self._clock(),
            answered=failure.kind in _ANSWERED,
            refused=failure.kind is FailureKind.REFUSED,
        )
        if self._heard is not None:
            self._heard.failure(self._pool.name, endpoint, failure)

    def to_probe(self) -> list[Endpoint]:
        return self._pool.to_probe(self._clock())

    def on_probe(self, endpoint: Endpoint, probe: Probe) -> None:
        member = self._pool.member(endpoint.address)
        if member is None:
            return  # the probe outlived the member
        if probe.error is None:
            member.health.probe_passed(probe.sent_at_s)
        else:
            member.health.probe_failed(probe.error, self._clock(), certain=probe.certain)
        if self._heard is not None:
            self._heard.probe(self._pool.name, endpoint, probe)


class ModelsSink:
    """Hands what servers say of their models to the pool."""

    def __init__(self, pool: Pool, heard: Heard | None = None) -> None:
        self._pool = pool
        self._heard = heard

    def on_models(self, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None:
        self._pool.told_models(endpoint.address, models, at_s)
        if self._heard is not None:
            self._heard.models(self._pool.name, endpoint, models, at_s)

    def on_no_models(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        reason, refused = f"{failure.kind}: {failure.detail}", failure.kind is FailureKind.REFUSED
        self._pool.models_failed(endpoint.address, reason, failure.at_s, refused=refused)
        if self._heard is not None:
            self._heard.no_models(self._pool.name, endpoint, failure)
