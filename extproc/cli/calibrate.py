"""`extproc calibrate`: how much does one server take, and which thresholds follow?

Exit status: 0 the profile is written, 1 the server does not meet the target at any rate, 2 mistyped, or the steps kept
are of other parameters, 3 the server cannot be measured, 4 this client is the bottleneck, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import re
import resource
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape

from extproc.cli._fail import fail

if TYPE_CHECKING:
    from rich.table import Table

    from extproc.autoscale.profile import Profile
    from extproc.autoscale.thresholds import Calibration, Thresholds
    from extproc.calibrate.fleet import Fleet
    from extproc.calibrate.kept import Kept
    from extproc.calibrate.lengths import Lengths
    from extproc.calibrate.plan import Plan
    from extproc.cli._calibrate_view import Picture, Plain

T = TypeVar("T")
_LENGTHS, _STEPS, _SERVER, _SHOWN = "Lengths", "Steps", "Server", "What is printed"
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m)?$")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


def calibrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="The vLLM server to load: http://host:port.")],
    ttft_p99: Annotated[
        str,
        typer.Option("--ttft-p99", metavar="TIME", help="99 of 100 requests have their first token within: 1s, 500ms."),
    ] = "1s",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the profile goes; its steps beside it.")] = Path(
        "profile.json"
    ),
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with plots; needs matplotlib.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget the steps that --out has, and measure all again.")
    ] = False,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="A number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA.", rich_help_panel=_LENGTHS
        ),
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Of the answers, likewise.", rich_help_panel=_LENGTHS)
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Recorded ones: lines {"prompt_tokens": 812, "output_tokens": 140}.',
            rich_help_panel=_LENGTHS,
        ),
    ] = None,
    from_service: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="As the servers of a running service report (its admin address).",
            rich_help_panel=_LENGTHS,
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help="With --from-service: which pool. The printed settings are of it, too.", rich_help_panel=_LENGTHS
        ),
    ] = None,
    shared_prefix: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.99,
            metavar="RATIO",
            help="This part of each prompt is common to all. [default: 0; with --from-service the fleet's hit ratio]",
            rich_help_panel=_LENGTHS,
        ),
    ] = None,
    start_rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="PER_S",
            help="The first rate, a low one. [default: one request after the other]",
            rich_help_panel=_STEPS,
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="How narrow the knee is bracketed.", rich_help_panel=_STEPS)
    ] = 0.05,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="With which a step is met or missed.", rich_help_panel=_STEPS)
    ] = 0.95,
    step_time: Annotated[
        str, typer.Option(metavar="TIME", help="A step is not met in less.", rich_help_panel=_STEPS)
    ] = "30s",
    step_requests: Annotated[
        int, typer.Option(min=20, help="After so many a step is decided in any case.", rich_help_panel=_STEPS)
    ] = 3000,
    warm_up: Annotated[
        str, typer.Option(metavar="TIME", help="Of each step, not counted.", rich_help_panel=_STEPS)
    ] = "10s",
    cool_down: Annotated[
        str, typer.Option(metavar="TIME", help="At most, until the server is idle again.", rich_help_panel=_STEPS)
    ] = "2m",
    poll: Annotated[
        str, typer.Option(metavar="TIME", help="Between two looks at the metrics page.", rich_help_panel=_STEPS)
    ] = "500ms",
    max_lateness: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1.0,
            metavar="RATIO",
            help="The client's own lateness (p99) over the target: more refuses the figure.",
            rich_help_panel=_STEPS,
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.", rich_help_panel=_STEPS)] = 1,
    model: Annotated[
        str | None, typer.Option(help="[default: the first that the server names]", rich_help_panel=_SERVER)
    ] = None,
    api: Annotated[str, typer.Option(help="completions or chat.", rich_help_panel=_SERVER)] = "completions",
    api_key: Annotated[
        str | None, typer.Option(envvar="VLLM_API_KEY", help="Sent as a bearer token.", rich_help_panel=_SERVER)
    ] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM CA of an https server.", rich_help_panel=_SERVER)] = None,
    metrics_url: Annotated[
        str | None, typer.Option(help="[default: /metrics of the server]", rich_help_panel=_SERVER)
    ] = None,
    design_growth: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PER_S2",
            help="Show the thresholds for a load that grows by so many requests/s each second, per server.",
            rich_help_panel=_SHOWN,
        ),
    ] = None,
    cold_start: Annotated[
        str, typer.Option(metavar="TIME", help="... while a new server takes so long to come.", rich_help_panel=_SHOWN)
    ] = "2m",
) -> None:
    """Load one vLLM server at rising rates until it misses a time to first token, and write the profile from which
    autoscaling reads its thresholds.

    Use a server that nobody else uses. Interrupted, the same command goes on where it was.
    """
    from extproc.calibrate import kept as files
    from extproc.calibrate.errors import CalibrationError
    from extproc.calibrate.judge import Rule
    from extproc.calibrate.plan import Plan

    if api not in ("completions", "chat"):
        fail(f'--api: "{api}" is neither completions nor chat', command="calibrate")
    for path in (out, report):
        if path is not None and not path.parent.is_dir():
            fail(f"{path}: there is no folder {path.parent}", command="calibrate")
        if path is not None and path.is_dir():
            fail(f"{path}: is a folder; name a file in it", command="calibrate")
    if report is not None:
        from extproc.calibrate.report import require_plots

        try:
            require_plots()
        except ImportError as error:
            fail(str(error), command="calibrate")
    steps_file = files.path_of(out)
    fleet: Fleet | None = None
    try:
        kept = None if anew else files.load(steps_file)
        if from_service is not None:
            fleet = _ask_fleet(_url("--from-service", from_service), pool, api_key, ca_file)
        found, source, shared_ratio = _lengths(prompt_tokens, output_tokens, lengths, from_service, pool, kept, fleet)
        plan = Plan(
            url=_url("URL", url).removesuffix("/v1"),
            lengths=found,
            lengths_source=source,
            rule=Rule(
                target_s=_seconds("--ttft-p99", ttft_p99),
                confidence=confidence,
                tolerance=tolerance,
                least_s=_seconds("--step-time", step_time),
                most=step_requests,
            ),
            model=model,
            api="chat" if api == "chat" else "completions",
            shared_ratio=shared_ratio if shared_prefix is None else shared_prefix,
            first_per_s=start_rate,
            warm_up_s=_seconds("--warm-up", warm_up),
            cool_down_s=_seconds("--cool-down", cool_down),
            poll_s=_seconds("--poll", poll),
            late_ratio=max_lateness,
            seed=seed,
            metrics_url=None if metrics_url is None else _url("--metrics-url", metrics_url),
        )
        kept = _begin(plan, kept, steps_file, fleet)
    except CalibrationError as error:
        fail(str(error), error.exit_code, command="calibrate")
    except ValueError as error:
        fail(str(error), command="calibrate")
    cold_start_s = _seconds("--cold-start", cold_start)
    profile, notes = _measure(plan, kept, steps_file, fleet, api_key, ca_file)
    _finish(profile, notes, out, report, pool, design_growth, cold_start_s)


# What is asked for ----------------------------------------------------------------------------------------------------


def _seconds(option: str, text: str) -> float:
    match = _DURATION.match(text.strip())
    if match is None or float(match[1]) <= 0.0:
        fail(f'{option}: "{text}" is no time above 0; write 500ms, 1s or 2m', command="calibrate")
    return float(match[1]) * _UNITS[match[2]]


def _url(option: str, text: str) -> str:
    full = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(full)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", full)
    except ValueError:  # a port above 65535, a bracket that stays open
        usable = False
    if not usable:
        fail(f'{option}: "{text}" is no URL; write http://host:port', command="calibrate")
    return full.rstrip("/")


def _lengths(
    prompt_tokens: str | None,
    output_tokens: str | None,
    lengths: Path | None,
    from_service: str | None,
    pool: str | None,
    kept: Kept | None,
    fleet: Fleet | None,
) -> tuple[Lengths, str, float]:
    """Those asked for, how they were asked for, and the part of prompts that is shared where nothing else is said.

    Raises ValueError.
    """
    from extproc.calibrate.lengths import Independent, read_recorded, read_shape

    ways = (lengths is not None) + (from_service is not None) + (prompt_tokens is not None or output_tokens is not None)
    if ways != 1:
        raise ValueError(
            ("how long are prompts and answers? " if not ways else "say only once how long prompts and answers are: ")
            + "--prompt-tokens and --output-tokens, or --lengths FILE, or --from-service URL"
        )
    if lengths is not None:
        try:
            recorded = read_recorded(lengths.read_bytes().splitlines(), str(lengths))
        except OSError as error:
            raise ValueError(f"--lengths {lengths}: {error.strerror}") from None
        return recorded, recorded.text, 0.0
    if fleet is not None:
        source = f"from the service at {from_service}" + ("" if pool is None else f", pool {pool}")
        if kept is not None and kept.prompt_shape and kept.output_shape:
            before = Independent(read_shape(kept.prompt_shape), read_shape(kept.output_shape))
            return before, source, kept.shared_ratio or 0.0
        if fleet.lengths is None:
            raise ValueError(
                "the servers of the service tell no lengths (vllm:request_prompt_tokens; or no request has ended yet);"
                " give --prompt-tokens and --output-tokens"
            )
        return fleet.lengths, source, min(0.99, round(fleet.hit_ratio or 0.0, 2))
    if prompt_tokens is None or output_tokens is None:
        missing = "--prompt-tokens" if prompt_tokens is None else "--output-tokens"
        raise ValueError(f"{missing} is missing: how long are the {'prompts' if prompt_tokens is None else 'answers'}?")
    both = Independent(read_shape(prompt_tokens), read_shape(output_tokens))
    return both, both.text, 0.0


def _ask_fleet(service: str, pool: str | None, api_key: str | None, ca_file: str | None) -> Fleet:
    from extproc.calibrate.client import new_session
    from extproc.calibrate.fleet import look
    from extproc.cli._admin import Rights

    # Its own CA and token are those of all commands; --ca-file is of the server under test, and may be of both.
    rights = Rights.of_environment()
    ca = ca_file if rights.ca is None else str(rights.ca)

    async def ask() -> Fleet:
        async with new_session(rights.token(), ca) as session, new_session(api_key, None) as servers:
            return await look(session, servers, service, pool)

    return asyncio.run(ask())


def _begin(plan: Plan, kept: Kept | None, steps_file: Path, fleet: Fleet | None) -> Kept:
    """The steps to go on from: none, or those kept. Raises CalibrationError."""
    from extproc.calibrate import kept as files
    from extproc.calibrate.kept import Kept
    from extproc.calibrate.lengths import Independent

    parameters = plan.parameters()
    if kept is not None and kept.steps:
        files.require_same(steps_file, kept, parameters)
        _say(f"{_steps(len(kept.steps))} kept in {steps_file}: going on from there (--anew measures all again)")
        return kept
    begun = Kept(parameters=parameters)
    if fleet is not None and isinstance(plan.lengths, Independent):
        begun.prompt_shape, begun.output_shape = plan.lengths.prompt.text, plan.lengths.output.text
        begun.shared_ratio = plan.shared_ratio
    files.save(steps_file, begun)  # not after the first hour: can it be written?
    return begun


# Measuring ------------------------------------------------------------------------------------------------------------


def _measure(
    plan: Plan, kept: Kept, steps_file: Path, fleet: Fleet | None, api_key: str | None, ca_file: str | None
) -> tuple[Profile, list[str]]:
    """The profile, and what is to be noted of it."""
    from extproc.calibrate.errors import CalibrationError
    from extproc.calibrate.run import calibrate as run
    from extproc.cli._calibrate_view import Picture, Plain

    _open_files()
    console = Console(stderr=True, highlight=False)
    view: Plain | Picture = Picture(console, kept.steps) if console.is_terminal else Plain()
    try:
        for text in _of_fleet(fleet, plan):
            view.note(text)
        like = () if fleet is None else fleet.cards
        profile = _loop(run(plan, kept, steps_file, view, like=like, api_key=api_key, ca_file=ca_file))
    except CalibrationError as error:
        view.close()
        fail(str(error) + _kept_words(kept, steps_file), error.exit_code, command="calibrate")
    except KeyboardInterrupt:
        view.close()
        _say("interrupted" + (_kept_words(kept, steps_file) or "; no step was done yet"))
        raise typer.Exit(130) from None
    view.close()
    return profile, view.notes


def _of_fleet(fleet: Fleet | None, plan: Plan) -> list[str]:
    """What was taken from it, and what is odd."""
    if fleet is None:
        return []
    prompt, output = plan.lengths.means
    out = [
        f"lengths of {fleet.requests:,} requests that {fleet.asked} of {fleet.servers} servers have served: prompts of"
        f" {prompt:,.0f} and answers of {output:,.0f} tokens on average; all prompts have {plan.shared_ratio:.0%} in"
        " common"
    ]
    if fleet.ttft_target_s is not None and fleet.ttft_target_s != plan.rule.target_s:
        out.append(
            f"the service's target is {fleet.ttft_target_s:g} s (ttft_p99_s), this test's {plan.rule.target_s:g} s"
        )
    return out


def _kept_words(kept: Kept, steps_file: Path) -> str:
    if not kept.steps:
        return ""
    return f"\n{_steps(len(kept.steps))} kept in {steps_file}: the same command goes on from there"


def _steps(count: int) -> str:
    return "1 step is" if count == 1 else f"{count} steps are"


def _open_files() -> None:
    """As many as may be: each open request is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _loop(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    return uvloop.run(work)


# What came out --------------------------------------------------------------------------------------------------------


def _finish(
    profile: Profile,
    notes: list[str],
    out: Path,
    report: Path | None,
    pool: str | None,
    growth_per_s2: float | None,
    cold_start_s: float,
) -> None:
    from extproc.calibrate.errors import CalibrationError
    from extproc.calibrate.kept import write_whole
    from extproc.calibrate.result import readings, yaml_lines

    rooms = readings(profile, growth_per_s2, cold_start_s)
    settings = yaml_lines(profile, str(out.resolve()), pool or "vllm", growth_per_s2)
    try:
        write_whole(out, profile.model_dump_json(indent=1, exclude_none=True) + "\n")
        if report is not None:
            from extproc.calibrate.report import html

            write_whole(report, html(profile, rooms, settings, notes))
    except CalibrationError as error:
        fail(str(error), error.exit_code, command="calibrate")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    missed = "" if profile.missed_per_s is None else f", missed at {profile.missed_per_s:g}"
    console.print(
        f"[bold]knee: {profile.knee_per_s:g} requests/s[/] a server, with TTFT p99 within"
        f" {profile.ttft_p99_target_s:g} s{missed}",
        soft_wrap=True,
    )
    console.print(_thresholds(rooms, profile.calibration))
    console.print(f"\nsettings of the pool:\n\n{escape(settings)}", soft_wrap=True)
    _say(f"wrote {out}" + ("" if report is None else f" and {report}"))


def _thresholds(rooms: Sequence[tuple[str, Thresholds]], calibration: Calibration) -> Table:
    from rich.table import Table

    from extproc.calibrate.result import figures

    table = Table(box=None, pad_edge=False, header_style="dim", title="thresholds of one server", title_justify="left")
    table.add_column("")
    for name, _ in figures(rooms[0][1], calibration):
        table.add_column(name, justify="right")
    for words, thresholds in rooms:
        table.add_row(words, *(value for _, value in figures(thresholds, calibration)))
    return table


def _say(text: str) -> None:
    typer.echo(text, err=True)
