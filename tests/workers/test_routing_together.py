"""Do several processes route as well as one? In virtual time; the whole comparison is `python -m bench.workers`.

W1 and W6 of the routing benchmark: what is learned by one must be known to the others before the next request asks for
it, and of a burst each must know the others' part. The means of two runs of one process differ by some per cent when
only the lots among equal servers fall otherwise; the bound is 5 %, as it is for the product, over three seeds together.
"""

from __future__ import annotations

import pytest

from bench.workers.__main__ import ARMS, Run, lost, run

SECONDS = 90.0


def runs(workload: str, *arms: str) -> list[Run]:
    wanted = [arm for arm in ARMS if arm.name in ("1 process", *arms)]
    assert len(wanted) == len(arms) + 1
    return [run(workload, arm, seed, SECONDS) for arm in wanted for seed in (1, 2, 3)]


@pytest.mark.parametrize("workload", ["W1", "W6"])
def test_two_workers_lose_at_most_five_percent_against_one_process(workload: str) -> None:
    found = runs(workload, "2 workers")
    assert not any(each.left for each in found)
    assert lost(found, workload)["2 workers"] <= 0.05


def test_workers_that_tell_each_other_nothing_lose_much() -> None:
    """Else the bound above would say nothing."""
    silent = "4 workers that tell each other nothing"
    assert lost(runs("W1", silent), "W1")[silent] > 0.3
