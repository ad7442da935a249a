"""What in a pod's manifest would cut requests that are still running, or keep its server from starting?

The arithmetic, with T the time that the last requests may take (`extproc.pool.deadline`, from the section `drain` of
the settings):

    terminationGracePeriodSeconds > what the preStop hook takes + T + teardown

The grace period begins with the hook. A hook that waits for the drain itself contains T. Without such a hook the
requests have T from SIGTERM on, if vLLM has `--shutdown-timeout` (from 0.18 on; the default of 0 ends all at once).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from extproc.config.codes import Finding, define
from extproc.config.manifests.hooks import PreStop, pre_stop_of
from extproc.config.manifests.pods import Budget, Pod, Server
from extproc.config.problems import Severity
from extproc.config.tree import Node

ERROR, WARNING = Severity.ERROR, Severity.WARNING
DEFAULT_GRACE_S = 30.0
TEARDOWN_S = 10.0  # vLLM 0.32 exits about 5 s after its last request; twice that
LEAST_TIMEOUT_S = 5  # nothing should run any more; what does all the same gets an error instead of silence
# vLLM itself gives its engines so long to start (VLLM_ENGINE_READY_TIMEOUT_S): a probe that gives less decides first.
START_S = 600.0
_DRAIN_HOOK = "exec: {command: [extproc, drain, --self, --wait]}"

NO_SERVER = define(
    "kubernetes-no-server",
    ERROR,
    "What was checked is not what will run.",
    'name the file with the pods that run "vllm serve"',
)
VALUE = define("kubernetes-value", ERROR, "Kubernetes refuses the manifest.", "write a whole number of seconds")
GRACE = define(
    "kubernetes-grace-short",
    ERROR,
    "When the grace period has passed, the server is killed with the requests that still run.",
    "",
)
NO_PRE_STOP = define(
    "kubernetes-pre-stop-missing",
    WARNING,
    "SIGTERM comes while requests are still sent there; vLLM refuses them.",
    f"add preStop: {{{_DRAIN_HOOK}}}",
)
SHORT_PRE_STOP = define(
    "kubernetes-pre-stop-short",
    WARNING,
    "The hook ends before the requests do, and then vLLM is told to stop.",
    f"wait for the drain instead: {_DRAIN_HOOK}",
)
SHUTDOWN_TIMEOUT = define(
    "kubernetes-shutdown-timeout",
    WARNING,
    "At SIGTERM vLLM ends at once by default, and running streams stop without a word. It can wait from 0.18 on.",
    "",
)
BUDGET = define(
    "kubernetes-disruption-budget",
    WARNING,
    "An upgrade of the nodes may take all servers away at once.",
    "add a PodDisruptionBudget with maxUnavailable: 1 that selects these pods",
)
STARTUP = define(
    "kubernetes-startup-probe",
    WARNING,
    "A server that still loads its model answers no probe, and is killed before it ever serves.",
    "",
)
READINESS = define(
    "kubernetes-readiness-probe",
    WARNING,
    "Without one a pod counts as ready when its process starts, minutes before it can serve; a rollout then takes the"
    " old ones away too early.",
    "add readinessProbe: {httpGet: {path: /health, port: 8000}}",
)


def pod_findings(pod: Pod, budgets: Sequence[Budget], longest_s: float) -> Iterator[Finding]:
    """What is wrong with a pod; `longest_s` is T."""
    hooks = [(server, pre_stop_of(server.container)) for server in pod.servers]
    yield from _grace(pod, [hook for _, hook in hooks], longest_s)
    for server, hook in hooks:
        yield from _pre_stop(server, hook, longest_s)
        yield from _shutdown_timeout(server, hook, longest_s)
        yield from _startup(server.container)
        yield from _readiness(server.container)
    if not any(budget.covers(pod) for budget in budgets):
        yield Finding(BUDGET, pod.spec, "no PodDisruptionBudget in the files given selects this pod")


def _grace(pod: Pod, hooks: Sequence[PreStop | None], longest_s: float) -> Iterator[Finding]:
    field = "terminationGracePeriodSeconds"
    node = pod.spec.get(field)
    grace_s = _number(node, DEFAULT_GRACE_S)
    if grace_s is None:
        assert node is not None
        yield _no_number(node)
        return
    hook_s, rest_s = max((_times(hook, longest_s) for hook in hooks), key=sum)
    needed_s = hook_s + rest_s + TEARDOWN_S
    if grace_s > needed_s:
        return
    parts = [f"{hook_s:.0f} s of preStop"] if hook_s else []
    parts += [f"{rest_s:.0f} s of the longest request"] if rest_s else []
    given = f"{grace_s:g} s" if node is not None else f"{grace_s:g} s, the default,"
    message = f"{given} are not more than {' + '.join([*parts, f'{TEARDOWN_S:.0f} s to end'])}"
    yield Finding(GRACE, pod.spec, message, field, f"write {floor(needed_s) + 1}")


def _times(hook: PreStop | None, longest_s: float) -> tuple[float, float]:
    """Seconds that the hook takes, and that requests may take after it."""
    if hook is None:
        return 0.0, longest_s
    if hook.waits:
        return hook.sleep_s + (longest_s if hook.deadline_s is None else hook.deadline_s), 0.0
    if hook.sleep_s >= longest_s:
        return hook.sleep_s, 0.0
    return hook.sleep_s, longest_s


def _pre_stop(server: Server, hook: PreStop | None, longest_s: float) -> Iterator[Finding]:
    if hook is None:
        yield Finding(NO_PRE_STOP, server.container, "is not set", "lifecycle.preStop")
    elif hook.drains and not hook.waits:
        yield Finding(SHORT_PRE_STOP, hook.node, "begins a drain and does not wait for it", cure="add --wait")
    elif hook.deadline_s is not None and hook.deadline_s < longest_s:
        message = f"waits {hook.deadline_s:g} s, and the longest request takes {longest_s:.0f} s"
        yield Finding(SHORT_PRE_STOP, hook.node, message, cure="leave --deadline out, or raise it")
    elif hook.bare and hook.sleep_s + (_timeout_s(server) or 0.0) < longest_s:
        message = f"sleeps {hook.sleep_s:g} s, and the longest request takes {longest_s:.0f} s"
        yield Finding(SHORT_PRE_STOP, hook.node, message)


def _timeout_s(server: Server) -> float | None:
    """Of --shutdown-timeout; None: it is not given, or no number."""
    try:
        return float(server.option("--shutdown-timeout") or "")
    except ValueError:
        return None


def _shutdown_timeout(server: Server, hook: PreStop | None, longest_s: float) -> Iterator[Finding]:
    if server.option("--config") is not None:
        return  # it may stand there
    timeout_s, given = _timeout_s(server), server.option("--shutdown-timeout")
    left_s = longest_s - _times(hook, longest_s)[0]
    enough = f"add --shutdown-timeout={max(LEAST_TIMEOUT_S, floor(left_s) + 1)}"
    if given is None or timeout_s == 0:
        message = "vLLM has no --shutdown-timeout" if given is None else "vLLM's --shutdown-timeout is 0"
        yield Finding(SHUTDOWN_TIMEOUT, server.container, message, "args", enough)
    elif timeout_s is not None and timeout_s < left_s and (hook is None or not (hook.drains or hook.bare)):
        message = f"vLLM's --shutdown-timeout of {timeout_s:g} s is less than the {left_s:.0f} s of the longest request"
        yield Finding(SHUTDOWN_TIMEOUT, server.container, message, "args", f"raise it to {floor(left_s) + 1}")


def _startup(container: Node) -> Iterator[Finding]:
    startup, liveness = container.get("startupProbe"), container.get("livenessProbe")
    for name, probe in (("startupProbe", startup), ("livenessProbe", liveness)):
        if probe is None:
            continue
        numbers = {
            field: _number(probe.get(field), default)
            for field, default in (("initialDelaySeconds", 0.0), ("periodSeconds", 10.0), ("failureThreshold", 3.0))
        }
        wrong = [probe.fields[field] for field, value in numbers.items() if value is None]
        yield from map(_no_number, wrong)
        if wrong or (probe is liveness and startup is not None):
            continue  # it begins when the startup probe has passed
        delay_s, period_s, failures = (value or 0.0 for value in numbers.values())
        allowed_s = delay_s + period_s * failures
        if allowed_s < START_S:
            message = f"kills a server that has not started after {allowed_s:g} s; vLLM itself waits {START_S:.0f} s"
            failures_needed = floor((START_S - delay_s) / period_s) if period_s else 0
            cure = (
                f"set failureThreshold: {failures_needed}"
                if probe is startup
                else "add startupProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 5, failureThreshold: 120}"
            )
            yield Finding(STARTUP, container, message, name, cure)


def _readiness(container: Node) -> Iterator[Finding]:
    probe = container.get("readinessProbe")
    if probe is None:
        yield Finding(READINESS, container, "is not set", "readinessProbe")
        return
    path = probe.at("httpGet", "path")
    if path is not None and str(path.value) not in ("/health", "/v1/models"):
        message = f'asks "{path.value}", which vLLM may answer before it can serve'
        yield Finding(READINESS, path, message, cure="ask /health")
    elif probe.get("tcpSocket") is not None:
        message = "asks only whether the port is open, which says nothing of the engine"
        yield Finding(READINESS, probe, message, cure="use httpGet: {path: /health, port: 8000}")


def _number(node: Node | None, default: float) -> float | None:
    """The value, or what holds without one; None: it is no number of seconds."""
    if node is None or node.value is None:
        return default
    value = node.value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _no_number(node: Node) -> Finding:
    return Finding(VALUE, node, f'"{str(node.value)[:60]}" is not a whole number')
