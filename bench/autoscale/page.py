"""What does the page docs/benchmarks/autoscale.md say?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from extproc.sim.scaling.report import ATTAINED, CLAIRVOYANT, NO_FORESIGHT, Cell
from extproc.sim.scaling.scenarios import COLD_START, LARGE, POLICIES, SCENARIOS, SMALL, Fleet, at_knee, profile

AIM = 1.2  # of the clairvoyant's replica-hours
_BOUNDS = (CLAIRVOYANT, NO_FORESIGHT)

LONG = ("long-step", "long-ramp", "long-lengths")
DAYS = ("full-day", *LONG)  # as long as people judge a service by
HOURS = ("day", "step", "ramp", "lengths", "large-step", "large-ramp", "large-lengths")

_DAYS = (
    "## Days\n",
    "A day of 24 hours and three working days of eight, each with one change after two hours.\n",
)
_HOURS = (
    "## Around a change\n",
    "What a change itself costs: 40 minutes with one in it, and a day pressed into two hours. What jumps while a server"
    " takes two minutes to come is queued, or met with room that was kept for it; in so short a time either weighs"
    " much, and for whoever does not know what comes the aim is out of reach in most of them (`no-foresight` of the"
    " bound). Of two to nine servers, moreover, one is a third of the cost.\n",
)
_COMPARED = (
    "Where both have the aim in target, who is cheaper is better: what is over it, nobody asked for. Else both count.\n"
)
_WHY = (
    "## Why it costs what it costs\n",
    "- *What nobody knows.* A server that is asked for when the load is there comes two minutes and more too late. Who"
    " knows what will come has few servers until the minute before, and many in it; who does not must have had room"
    " before, or be late. `no-foresight` is the clairvoyant without foresight: it knows the load of each minute"
    " exactly, but when it is over, and gives servers back at once. It is no limit of what can be done, only of what"
    " its kind of rule can; the table above says what foresight alone is worth to it.",
    "- *Jumps.* Where the load jumps by half, in a fleet whose whole servers happen to leave no such room, requests"
    " queue until the cold start is over, whatever asks for servers. `design_growth_per_s2` and `min_replicas` buy"
    " that room, and cost it all day. Here they are not set.",
    "- *The way down.* A server goes when the load would fit on the others at 0.7 of the thresholds, for five minutes,"
    " one at a time. While a load falls, that is up to 1/0.7 of what it needs and one server more. It is the price of"
    " not turning round, and of the room that jumps meet. After a calm hour it is 0.9.",
    "- *One server's knee.* A fleet bears more for each server than one alone, since a queue may use any; how much, the"
    " factor of the clairvoyant shows. Ours counts on it after a calm hour only: before, jumps need that room"
    " ([why](../decisions/a-calm-pool-needs-less-room.md)).",
    "- The clairvoyant stands at the edge: a few per cent more load than it knew, and its requests queue. No rule that"
    " does not know the load can stand there.\n",
)


def page(cells: Sequence[Cell], seeds: Sequence[int]) -> str:
    """All of it. `cells`: of each scenario and seed one for each policy."""
    told = ", ".join(str(seed) for seed in seeds)
    of_seeds = "Seed" if len(seeds) == 1 else "Means over seeds"
    knee = at_knee()
    names = list(dict.fromkeys(cell.scenario for cell in cells))
    out = [
        "# Autoscaling in simulation\n",
        "**This is simulation, not measurement.** The service's own router and recommender over simulated vLLM engines,"
        " cold starts and an HPA, in virtual time, beside common rules on the same requests. Made by"
        " `make bench-autoscale`; the same seeds give the same figures on any machine. One scenario:"
        " `extproc simulate --autoscale day` ([how](../simulate.md#a-fleet-that-follows-its-load)).\n",
        "## What the figures rest on\n",
        "- Target: the first token within"
        f" {SMALL.target_s:g} s. *In target* is the part of all requests that met it, those of cold starts and queues"
        " included.",
        f"- One server's load test, in virtual time, has its knee at {profile().knee_per_s:.3g} requests/s; there"
        f" {knee.waiting:.2f} requests wait and {knee.running:.0f} run on average, and KV usage is"
        f" {knee.kv_usage_ratio:.0%}. All thresholds are of this test.",
        f"- A cold start takes {COLD_START.total_s():.0f} s, 10 % more or less; an HPA looks every 15 s, with a"
        f" tolerance of {SMALL.tolerance:.0%}; at most {SMALL.most} servers. Replica-hours count from when a server is"
        " asked for until it is gone, starting and draining included. A server that goes is drained, whoever asks.",
        _larger(LARGE),
        "- `ours` has the default settings and the profile. The others have Kubernetes' and KEDA's defaults: down to"
        " the most that was asked for in 300 s, several at once. Their gauges are means over a minute, which is kinder"
        " than one reading.",
        "- *Bound*: the clairvoyant knows all requests in advance. For each minute it has as many servers as the load"
        " fills at the knee, times one factor, the smallest with which"
        f" {ATTAINED:.0%} of the requests meet the target; it asks for them early enough. Runs find the factor.\n",
        f"{of_seeds} {told}; the recommender was made with seeds 1 to 4, except for what it does in a"
        " [calm pool](../autoscale.md#a-calm-pool), which was made with seed 5; and one seed is one sample"
        " ([what others gave](../decisions/a-calm-pool-needs-less-room.md#other-seeds)). In bold: what has"
        f" {ATTAINED:.0%} in target for at most {AIM:g} of the bound's replica-hours.\n",
        "![Servers, load and time to first token over time](autoscale.png)\n",
        "| policy | |\n|---|---|",
        *(f"| `{policy}` | {POLICIES[policy]} |" for policy in dict.fromkeys(cell.policy for cell in cells)),
        "",
    ]
    for words, of in ((_DAYS, DAYS), (_HOURS, HOURS)):
        if some := [name for name in names if name in of]:
            out += words
            for name in some:
                out += _scenario(name, [cell for cell in cells if cell.scenario == name])
    out += ["## What ours wins and loses\n", _COMPARED, *_verdicts(cells), ""]
    out += ["## What foresight is worth\n", *_foresight(cells), "", *_WHY]
    return "\n".join(out)


def _larger(fleet: Fleet) -> str:
    return (
        "- `long-` and `large-` have a larger fleet: four times the load, on servers half as fast (knee"
        f" {profile(fleet=fleet).knee_per_s:.3g} requests/s), with twice the target ({fleet.target_s:g} s), at most"
        f" {fleet.most} of them, and an HPA without tolerance, as the manifests that ship have it"
        " ([why](../autoscale-kubernetes.md#windows-policies-tolerance))."
    )


def _scenario(name: str, cells: Sequence[Cell]) -> Iterator[str]:
    yield f"### {name}: {SCENARIOS[name].words}\n"
    yield f"About {fmean(cell.requests for cell in cells):,.0f} requests.\n"
    yield "| policy | in target | TTFT p99 | replica-hours | of the bound | reversals |\n|---|--:|--:|--:|--:|--:|"
    for policy in dict.fromkeys(cell.policy for cell in cells):
        of = [cell for cell in cells if cell.policy == policy]
        attained, hours, ratio = _means(of)
        meets = attained >= ATTAINED and ratio is not None and ratio <= AIM and policy not in _BOUNDS
        bold = "**" if meets else ""
        texts = [
            f"{100 * attained:.2f} %",
            f"{fmean(cell.ttft_p99_s for cell in of):.2f} s",
            f"{hours:.2f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{fmean(cell.reversals for cell in of):g}",
        ]
        yield f"| {policy} | " + " | ".join(f"{bold}{text}{bold}" for text in texts) + " |"
    yield ""


def _means(cells: Sequence[Cell]) -> tuple[float, float, float | None]:
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    return (
        fmean(cell.slo_attainment for cell in cells),
        fmean(cell.replica_hours for cell in cells),
        fmean(ratios) if len(ratios) == len(cells) else None,
    )


def _verdicts(cells: Sequence[Cell]) -> Iterator[str]:
    """For each scenario and rule: better on both, on one at a price, or on none."""
    yield "| scenario | rule | in target, ours less its | replica-hours, ours of its | |\n|---|---|--:|--:|---|"
    for name in dict.fromkeys(cell.scenario for cell in cells):
        ours, hours, _ = _means([cell for cell in cells if (cell.scenario, cell.policy) == (name, "ours")])
        for policy in dict.fromkeys(cell.policy for cell in cells):
            if policy in ("ours", *_BOUNDS):
                continue
            of = [cell for cell in cells if (cell.scenario, cell.policy) == (name, policy)]
            if not of:
                if name not in LONG:
                    yield f"| {name} | {policy} | | | none of its targets does |"
                continue
            its, its_hours, _ = _means(of)
            word = _compared(ours, its, hours <= its_hours)
            yield f"| {name} | {policy} | {100 * (ours - its):+.2f} points | {hours / its_hours:.2f} | {word} |"


def _compared(ours: float, its: float, cheaper: bool) -> str:
    if min(ours, its) >= ATTAINED:
        return "cheaper" if cheaper else "dearer"
    return {
        (True, True): "better and cheaper",
        (True, False): "better, dearer",
        (False, True): "cheaper, worse",
        (False, False): "**worse and dearer**",
    }[ours >= its, cheaper]


def _foresight(cells: Sequence[Cell]) -> Iterator[str]:
    """What the clairvoyant would pay without it, and what ours pays beside that."""
    yield "| scenario | no-foresight of the bound | ours of no-foresight | ours, in target |\n|---|--:|--:|--:|"
    for name in dict.fromkeys(cell.scenario for cell in cells):
        attained, hours, _ = _means([cell for cell in cells if (cell.scenario, cell.policy) == (name, "ours")])
        without = [cell for cell in cells if (cell.scenario, cell.policy) == (name, NO_FORESIGHT)]
        if not without:
            if name not in LONG:
                yield f"| {name} | none of its plans does | | {100 * attained:.2f} % |"
            continue
        _, its_hours, ratio = _means(without)
        worth = "" if ratio is None else f"{ratio:.2f}"
        yield f"| {name} | {worth} | {hours / its_hours:.2f} | {100 * attained:.2f} % |"
