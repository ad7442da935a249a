"""Which rules can an operator name?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.scheduling.costs import CostFunction, least_loaded


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of filter, cost and picker. All profiles share the filter (`filters.eligible`) and the picker."""

    name: str
    cost: CostFunction


PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (Profile("least-loaded", least_loaded),)}
