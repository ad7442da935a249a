"""What does an operator say of how many servers a pool may have, and how they come?"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from extproc.autoscale.cold_start import ColdStart
from extproc.autoscale.policy import Policy
from extproc.autoscale.profile import Profile
from extproc.autoscale.schedule import Schedule
from extproc.config.section import Amount, Seconds, Section
from extproc.endpoint import split_host_port

_EXPECTED = ColdStart()


class ColdStartSettings(Section):
    """How long a server takes from being asked for to its first answer: node_s + image_s + weights_gb /
    storage_gb_per_s + engine_s. What starts were measured takes the place of all but node_s."""

    node_s: Amount = Field(_EXPECTED.node_s, description="Until there is a machine; 0: machines are there.")
    image_s: Amount = Field(_EXPECTED.image_s, description="To pull the image and start the container.")
    weights_gb: Amount = Field(_EXPECTED.weights_gb, description="Size of the weights.")
    storage_gb_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        _EXPECTED.storage_gb_per_s, description="How fast they are read."
    )
    engine_s: Amount = Field(
        _EXPECTED.engine_s, description="From weights loaded to the first answer: compiling, CUDA graphs."
    )

    @property
    def cold_start(self) -> ColdStart:
        return ColdStart(self.node_s, self.image_s, self.weights_gb, self.storage_gb_per_s, self.engine_s)


class ScheduleSettings(Section):
    """At least so many servers from each `start` to the next `end`. Needs the extra `autoscale`."""

    start: str = Field(description="When they are to be ready: cron, as 0 8 * * 1-5.")
    end: str = Field(description="From when on they are not needed any more: cron.")
    replicas: int = Field(ge=1, description="Servers; max_replicas still holds.")
    zone: str = Field("UTC", description="Time zone of both, as Europe/Berlin.")

    @model_validator(mode="after")
    def _can_be_meant(self) -> ScheduleSettings:
        _ = self.schedule
        return self

    @property
    def schedule(self) -> Schedule:
        """Raises ValueError for what none can be."""
        return Schedule(self.start, self.end, self.replicas, self.zone)


class AutoscaleSettings(Section):
    max_replicas: int = Field(ge=1, description="No more servers are recommended.")
    min_replicas: int = Field(1, ge=0, description="No fewer are; 0: none, while no request comes.")
    profile: str | None = Field(
        None,
        min_length=1,
        description="The profile.json that extproc calibrate wrote for these servers: the thresholds come from it;"
        " unset: the pool is uncalibrated, and goes by low thresholds that suit most servers.",
    )
    ttft_p99_s: Seconds | None = Field(
        None,
        description="The time within which 99 of 100 requests are to have their first token: the thresholds are judged"
        " by it; unset: the profile's target, or no judgement.",
    )
    design_growth_per_s2: Amount = Field(
        0.0,
        description="By how much the rate of requests may grow each second, per server, without a server coming too"
        " late; 0: by what is measured.",
    )
    cold_start: ColdStartSettings = Field(default_factory=lambda: ColdStartSettings())
    schedules: tuple[ScheduleSettings, ...] = Field(
        (), description="Times with a minimum of their own. They begin early by the time that servers take to come."
    )
    window_s: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        60.0, description="Signals are means over so long; a burst much shorter than it asks for nothing."
    )
    sync_s: Amount = Field(15.0, description="Until whoever starts servers looks at the recommendation: the HPA's 15.")
    down_after_s: Amount = Field(
        300.0, description="The load must fit on fewer servers for so long, and two cold starts, before one goes."
    )
    stale_after_s: Seconds = Field(
        300.0, description="When nothing was known of the servers' load for so long, nothing is recommended."
    )
    tighten: bool = Field(
        False,
        description="When the time to first token proves the thresholds too high, lower them, step by step; needs"
        " profile.",
    )
    ease: bool = Field(
        True,
        description="When an hour shows that the time to first token stays well within its target, leave less room;"
        " without a profile or a target nothing is eased.",
    )
    peers: tuple[str, ...] = Field(
        (),
        description="host:port of the admin ports of the other service processes in front of this pool, or a name that"
        " resolves to all of them: the requests that come to each are added up. This process may be among them.",
    )

    @field_validator("peers")
    @classmethod
    def _peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if "://" in text:
                raise ValueError(f'peer "{text}" is a URL; write the host:port of its admin.listen')
            split_host_port(text)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> AutoscaleSettings:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas ({self.min_replicas}) is more than max_replicas ({self.max_replicas}); lower the first"
            )
        if self.tighten and self.profile is None:
            raise ValueError("tighten has no effect without a profile; set profile, or remove tighten")
        return self

    def policy(self, profile: Profile | None, *, scrape_s: float, sample_stale_after_s: float) -> Policy:
        """`profile`: what is in the file of that name. `scrape_s`: between two looks at a server."""
        return Policy(
            max_replicas=self.max_replicas,
            min_replicas=self.min_replicas,
            calibration=None if profile is None else profile.calibration,
            ttft_target_s=self.ttft_p99_s or (None if profile is None else profile.ttft_p99_target_s),
            design_growth_per_s2=self.design_growth_per_s2,
            cold_start=self.cold_start.cold_start,
            schedules=tuple(each.schedule for each in self.schedules),
            ease=self.ease,
            window_s=self.window_s,
            scrape_s=scrape_s,
            sync_s=self.sync_s,
            sample_stale_after_s=sample_stale_after_s,
            down_after_s=self.down_after_s,
            stale_after_s=self.stale_after_s,
        )
