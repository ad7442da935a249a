"""What is a simulated server told to do wrong?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

MetricsFault = Literal["ok", "error", "hang", "garbage", "empty", "huge", "frozen"]
HealthFault = Literal["ok", "error", "hang"]


@dataclass(frozen=True, slots=True)
class Faults:
    """All switches; the defaults are a healthy server. Raises ValueError on a value out of range.

    Ratios are of the inference requests, drawn with the server's seed.
    """

    slow_factor: float = 1.0  # engine steps take this much longer
    error_status: int | None = None  # answer inference requests with this status, e.g. 500, 503, 429
    error_ratio: float = 1.0  # how many of them
    retry_after_s: int | None = None  # sent with these answers; None: no such header
    hang_ratio: float = 0.0  # accept the request and never answer
    reset_ratio: float = 0.0  # reset the connection instead of an answer
    hang_after_tokens: int | None = None  # streams fall silent after so many tokens and stay open
    reset_after_tokens: int | None = None  # the connection is reset after so many tokens of a stream
    metrics: MetricsFault = "ok"  # frozen: the page of the moment the fault was set, for ever
    metrics_huge_mb: int = 20  # size of the huge page
    health: HealthFault = "ok"
    asleep: bool = False  # the metrics page says so; requests are answered as usual
    cold_start_s: float = 0.0  # from the start (or from when it is set): 503 on everything

    def __post_init__(self) -> None:
        for name in ("error_ratio", "hang_ratio", "reset_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)} is outside 0 to 1")
        if self.slow_factor <= 0.0:
            raise ValueError(f"slow_factor: {self.slow_factor} must be above 0")
        if self.error_status is not None and not 400 <= self.error_status <= 599:
            raise ValueError(f"error_status: {self.error_status} is not an HTTP error (400 to 599)")
        if self.metrics not in get_args(MetricsFault):
            raise ValueError(f"metrics: {self.metrics!r} is none of {', '.join(get_args(MetricsFault))}")
        if self.health not in get_args(HealthFault):
            raise ValueError(f"health: {self.health!r} is none of {', '.join(get_args(HealthFault))}")

    def changed(self, values: Mapping[str, Any]) -> Faults:
        """These faults with some of them set anew. Raises ValueError on a name or a type that does not fit."""
        healthy = Faults()
        known = {f.name for f in fields(Faults)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name}: no such fault; there are {', '.join(sorted(known))}")
            default = getattr(healthy, name)
            if isinstance(default, bool) or isinstance(value, bool):
                fits = isinstance(default, bool) and isinstance(value, bool)
            elif default is None:
                fits = value is None or isinstance(value, int)
            elif isinstance(default, (int, float)):
                fits = isinstance(value, (int, float))
            else:
                fits = isinstance(value, type(default))
            if not fits:
                raise ValueError(f"{name}: {value!r} does not fit; an example is {default!r}")
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """All switches, for JSON."""
        return asdict(self)
