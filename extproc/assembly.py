"""How do settings become a router?"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from random import Random

from extproc.config.settings import PoolSettings, Settings
from extproc.pool.pool import Pool
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.scheduling.shedding import ShedRule
from extproc.unknown import NamedBy

log = logging.getLogger(__name__)

# A list of models older than so many intervals is no ground to refuse a request, or not believed at all.
_REFUSE_WITHIN, _BELIEVE_WITHIN = 2, 3


def router_of(settings: Settings, clock: Callable[[], float]) -> Router:
    """A router over the pools of the settings, which have no members yet.

    Pick ids come back through Envoy, perhaps to another process than made them: a prefix drawn here tells them apart.
    """
    router = Router(
        [_plan(name, pool, settings, time.time() - clock()) for name, pool in settings.pools.items()],
        default_pool=settings.default_pool,
        rng=Random(),
        id_prefix=f"{secrets.token_hex(4)}-",
    )
    router.unknown.on_new = _warn_of_unknown
    return router


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


def _warn_of_unknown(by: NamedBy, name: str) -> None:
    kind = "pool" if by is NamedBy.ROUTE_POOL else "profile"
    log.warning("a route names the %s %r, which there is not: its requests are routed as if it named none", kind, name)
