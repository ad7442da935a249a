"""What does the load test come to: the profile, the thresholds, the lines for the settings?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from extproc.autoscale.policy import Policy
from extproc.autoscale.profile import Lengths, Profile, StepRow
from extproc.autoscale.thresholds import LEAST_RATIO, Calibration, Thresholds
from extproc.calibrate.bracket import Knee
from extproc.calibrate.kept import Kept
from extproc.calibrate.plan import Plan

_ROOMS = (0.8, 0.6, LEAST_RATIO)  # of the knee, shown where no growth is given


def profile_of(plan: Plan, kept: Kept, knee: Knee) -> Profile:
    """Of the steps kept and the knee they bracket."""
    assert kept.server is not None
    # Of a rate that was measured twice the second time counts: it is why the first was not enough.
    rows = sorted({row.rate_per_s: row for row in kept.steps}.values(), key=lambda row: row.rate_per_s)
    prompt_tokens = _mean(rows, [row.prompt_tokens for row in rows])
    output_tokens = _mean(rows, [row.output_tokens for row in rows])
    hit_ratio = _mean(rows, [row.hit_ratio for row in rows])
    means = plan.lengths.means
    prompt = prompt_tokens or means[0]
    return Profile(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ttft_p99_target_s=plan.rule.target_s,
        knee_per_s=knee.rate_per_s,
        missed_per_s=knee.missed_per_s,
        idle_ttft_s=kept.idle_ttft_s,
        idle_stay_s=kept.idle_stay_s,
        shared_prefix_ratio=plan.shared_ratio,
        server=kept.server,
        lengths=Lengths(
            prompt_tokens=prompt,
            uncached_tokens=None if hit_ratio is None else prompt * (1.0 - hit_ratio),
            output_tokens=means[1] if output_tokens is None else output_tokens,
        ),
        steps=tuple(rows),
    )


def _mean(rows: Sequence[StepRow], values: Sequence[float | None]) -> float | None:
    """Over the requests of the steps that met the target."""
    told = [(row.requests, value) for row, value in zip(rows, values, strict=True) if row.met and value is not None]
    total = sum(count for count, _ in told)
    return sum(count * value for count, value in told) / total if total else None


def readings(profile: Profile, growth_per_s2: float | None, cold_start_s: float) -> list[tuple[str, Thresholds]]:
    """Thresholds and what each leaves room for: at the knee, and below it. `growth_per_s2`: requests/s that the load of
    one server may grow by each second; None: not given, so some rates below the knee are shown."""
    calibration = profile.calibration
    out = [("at the knee, nothing grows", calibration.led(0.0, 0.0))]
    if growth_per_s2:
        ahead_s = Policy(max_replicas=1).lead_s(cold_start_s)  # where nothing else is set
        words = f"growing by {growth_per_s2:g} requests/s each second for {ahead_s:.0f} s"
        out.append((words, calibration.led(growth_per_s2, ahead_s)))
        return out
    for part in _ROOMS:
        room = (1.0 - part) * profile.knee_per_s
        out.append((f"with room for {room:.3g} requests/s more", calibration.at(part * profile.knee_per_s)))
    return out


def yaml_lines(profile: Profile, path: str, pool: str, growth_per_s2: float | None) -> str:
    """For the settings of the pool."""
    growth = (
        f"      design_growth_per_s2: {growth_per_s2:g}\n"
        if growth_per_s2
        else "      # design_growth_per_s2: 0.02   # requests/s that the load of one server may grow by each second\n"
    )
    return (
        "pools:\n"
        f"  {pool}:\n"
        "    autoscale:\n"
        "      max_replicas: 8   # as many as you can have\n"
        f"      profile: {path}\n"
        f"      ttft_p99_s: {profile.ttft_p99_target_s:g}\n{growth}"
    )


def figures(thresholds: Thresholds, calibration: Calibration) -> list[tuple[str, str]]:
    """Names and values, as a person reads them; what is not known is a dash. Where the threshold is a floor, what was
    read there is told, too: nobody finds 50 % in the steps."""

    def text(value: float | None, form: str) -> str:
        return "-" if value is None else form.format(value)

    def floored(name: str, value: float | None, form: str) -> str:
        found = value if thresholds.rate_per_s is None else calibration.read(name, thresholds.rate_per_s)
        shown, read = text(value, form), text(found, form)
        return shown if read == shown else f"{shown} (read {read})"

    return [
        ("requests/s", text(thresholds.rate_per_s, "{:.3g}")),
        ("waiting", floored("waiting", thresholds.waiting, "{:.2f}")),
        ("running", text(thresholds.running, "{:.1f}")),
        ("KV usage", floored("kv_usage_ratio", thresholds.kv_usage_ratio, "{:.1%}")),
        ("prefill tokens/s", text(thresholds.prefill_tokens_per_s, "{:,.0f}")),
    ]
