"""What does the page docs/benchmarks/scaling.md say?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.scaling.run import FEW, MANY, Plan, Ran, moved, part

_WHAT = {
    "cache-aware": "this service's default: the least expected time to first token",
    "session": "this service: consistent hashing of the session within a load bound",
    "ring-hash": "consistent hashing of the session, no load bound (as Envoy's ring hash)",
    "modulo-hash": "hash of the session modulo the number of servers, in the order in which they came",
}


def page(runs: Mapping[str, Sequence[Ran]], at_once: Mapping[str, Sequence[Ran]], plan: Plan, once: Plan) -> str:
    """`at_once`: runs in which all servers came, and left, at one time (`once`)."""
    some = next(iter(runs.values()))
    seeds = ", ".join(str(each.seed) for each in some)
    requests = sum(len(each.arrivals) for each in some)
    out = [
        f"# From {FEW} to {MANY} to {FEW} servers\n",
        "**This is simulation, not measurement**: the service's own router, and two simpler policies, over simulated"
        " vLLM engines in virtual time. What the figures rest on is told in [simulated.md](simulated.md). Made by"
        " `make bench-scaling`; the same seeds give the same figures on any machine.\n",
        f"The traffic is W2, chats of 4 to 12 turns with a session id, sized for {FEW} servers, and stays the same"
        f" throughout. From second {plan.grow_s:g} on a server joins every {plan.apart_s:g} s, with nothing cached,"
        f" until there are {MANY}. From second {plan.shrink_s:g} on one is drained every {plan.apart_s:g} s, the last"
        " to come first: it gets no new requests, ends those it has, and leaves. No answer is cut, so a change costs"
        " only that prompts are computed again elsewhere.\n",
        "![Hit rate and p90 of the time to first token over time](scaling.png)\n",
        f"Each point: {plan.window_s:g} s, seeds {seeds} together ({requests:,} requests by each policy).\n",
        "| policy | |\n|---|---|",
        *(f"| `{policy}` | {_WHAT[policy]} |" for policy in runs),
        "",
        "## Hit rate and time to first token\n",
        "Prompt tokens found cached in %, and the 90th percentile of the time to first token in ms, of the requests"
        f" that arrived in each part. The changes last until {2 * plan.window_s:g} s after the last of them.\n",
        *_parts(runs, plan),
        "",
        "## Conversations that moved\n",
        "The share of the conversations under way at a change whose next turn went to another server than the turn"
        " before; in brackets, where servers leave, those whose own server stayed. An equal share is what a newcomer"
        " would have to be given, or what a leaving server has to give up, if all had equally many.\n",
        *_moves(runs, plan),
        "",
        "Consistent hashing moves about an equal share, a modulo nearly all. `cache-aware` moves nobody to a newcomer,"
        " since the server that holds a conversation answers it sooner; newcomers get new conversations. `session` and"
        " `ring-hash` have rings with other points, since their servers have other names: by that alone their shares"
        f" differ.\n\nAll at once, {FEW} to {MANY} and back, is a modulo's best case, since {FEW} divides {MANY}:\n",
        *_moves(at_once, once),
        "",
    ]
    return "\n".join(out)


def _parts(runs: Mapping[str, Sequence[Ran]], plan: Plan) -> list[str]:
    phases = plan.phases()
    lines = ["| policy | " + " | ".join(phases) + " |", "|---|" + "--:|" * len(phases)]
    for policy, each in runs.items():
        parts = [part(each, start_s, end_s) for start_s, end_s in phases.values()]
        cells = [f"{100 * p.hit_ratio:.0f} %, {1000 * p.ttft_p90_s:.0f}" for p in parts]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines


def _moves(runs: Mapping[str, Sequence[Ran]], plan: Plan) -> list[str]:
    before, titles, equal = FEW, [], []
    for step, _ in plan.steps():
        after = len(step.servers)
        titles.append(f"{before} → {after}")
        equal.append(1 - min(before, after) / max(before, after))
        before = after
    lines = ["| policy | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    lines.append("| *equal share* | " + " | ".join(f"*{100 * share:.0f} %*" for share in equal) + " |")
    for policy, each in runs.items():
        cells, before = [], FEW
        for step, until_s in plan.steps():
            share = moved(each, step, until_s)
            leaving = f" ({100 * share.needlessly:.0f} %)" if len(step.servers) < before else ""
            cells.append(f"{100 * share.of_all:.0f} %{leaving}")
            before = len(step.servers)
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines
