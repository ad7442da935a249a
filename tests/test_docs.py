"""Do the pages for users name only what exists?"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from extproc.admin.autoscale_metrics import AutoscaleCollector
from extproc.admin.metrics import RouterCollector, registry
from extproc.autoscaling import Autoscaling
from extproc.config.settings import Settings
from extproc.endpoint import Address, Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.server.durations import Durations

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{page.name} links to {missing}"


def test_the_operating_guide_lists_exactly_the_metrics_there_are() -> None:
    guide = (ROOT / "docs" / "operate.md").read_text()
    table = guide.partition("## Metrics")[2].partition("\n## ")[0]
    rows = [line.partition("|")[2].partition("|")[0] for line in table.splitlines() if line.startswith("| `")]
    documented: set[str] = set()
    for row in rows:
        names = [name.partition("{")[0] for name in re.findall(r"`([^`]+)`", row)]
        stem = names[0].rsplit("_", 1)[0]
        documented |= {stem + name if name.startswith("_") else name for name in names}
    assert documented == exported_metrics()


def exported_metrics() -> set[str]:
    """The names a router exports after everything has happened to it at least once."""
    pool = Pool("p", stale_after_s=3)
    pool.set_endpoints([Endpoint(Address.of("127.0.0.1", 8000))])
    router = Router([PoolPlan(pool, PROFILES["least-loaded"], 1)], rng=Random(0))
    router.observe("p", Address.of("127.0.0.1", 8000), LoadSample(0.0, running=1, waiting=1, kv_usage_ratio=0.5), 0.0)
    router.route(RawRequest(), 0.0)
    counts = dict.fromkeys(
        (
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
        ),
        1.0,
    )
    collector = RouterCollector(router, lambda: counts, Durations().cumulative, lambda: True, lambda: 1.0)
    autoscaling = Autoscaling(router, Settings(), process="", clock=lambda: 1.0)
    names = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in registry(collector, AutoscaleCollector(autoscaling)).collect()
        if metric.name.startswith("extproc_")
    }
    assert len(names) > 10
    return names
