"""Where does what is heard of servers go? From the loops of `telemetry` to the router and its pools."""

from __future__ import annotations

from collections.abc import Callable

from extproc.endpoint import Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.router import Router
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.models import ModelsPoller
from extproc.telemetry.prober import Probe

# A broken page or a bad certificate is an answer too: somebody is there, and may well serve requests.
_ANSWERED = frozenset({FailureKind.HTTP_STATUS, FailureKind.BROKEN, FailureKind.TLS})


class PoolSink:
    """Hands the results of poller and prober to the router."""

    def __init__(
        self, router: Router, pool: Pool, clock: Callable[[], float], models: ModelsPoller | None = None
    ) -> None:
        """`models` is told when a server has come up or was restarted: it may serve something else."""
        self._router = router
        self._pool = pool
        self._clock = clock
        self._models = models

    def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
        anew = self._router.observe(self._pool.name, endpoint.address, sample, self._clock())
        if anew and self._models is not None:
            self._models.ask_again(endpoint.address)

    def on_failure(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self._pool.scrape_failed(
            endpoint.address,
            f"{failure.kind}: {failure.detail}",
            self._clock(),
            answered=failure.kind in _ANSWERED,
            refused=failure.kind is FailureKind.REFUSED,
        )

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


class ModelsSink:
    """Hands what servers say of their models to the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def on_models(self, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None:
        self._pool.told_models(endpoint.address, models, at_s)

    def on_no_models(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        reason, refused = f"{failure.kind}: {failure.detail}", failure.kind is FailureKind.REFUSED
        self._pool.models_failed(endpoint.address, reason, failure.at_s, refused=refused)
