"""What comes of a file: the shipped ones, others of both kinds, and bytes that are no configuration?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from extproc.config import ConfigError, endpoints_file, load, read_settings
from extproc.config.check import check
from extproc.config.problems import Severity
from extproc.config.settings import EndpointSettings, Settings

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "envoy").glob("envoy*.yaml"))
OWN = """
grpc: {listen: "0.0.0.0:9002"}
scrape: {interval_s: 1, stale_after_s: 4}
pools:
  chat:
    endpoints:
    - {address: "10.0.0.1:8000", weight: 2, model: big, metrics_port: 9100}
    - {address: "vllm.example:8000", drained: true}
    - {address: "[fd00::10]:8000"}
"""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_has_no_problem_and_makes_a_pool_of_four(path: Path) -> None:
    loaded = load(path)
    assert check(loaded) == ()
    assert loaded.kind == "envoy"
    assert loaded.settings is not None
    pool = loaded.settings.pools["vllm"]
    listed: tuple[EndpointSettings, ...] | None = pool.endpoints
    if pool.discovery is not None:
        assert pool.discovery.file is not None
        file = ROOT / pool.discovery.file.path
        listed, problems = endpoints_file.read(file.read_bytes(), file.name)
        assert problems == ()
    assert listed is not None
    addresses = [endpoint.address for endpoint in listed]
    assert addresses == [f"127.0.0.1:{port}" for port in (8001, 8002, 8003, 8004)]


def test_an_own_file_may_say_where_the_admin_port_is() -> None:
    loaded = load('admin: {listen: "0.0.0.0:9003"}\npools: {p: {endpoints: [{address: "10.0.0.1:8000"}]}}\n')
    assert (loaded.kind, loaded.problems) == ("own", ())
    assert loaded.settings is not None
    assert loaded.settings.admin.listen == "0.0.0.0:9003"


def test_a_bootstrap_with_nothing_but_an_admin_port_is_envoys() -> None:
    assert load('admin: {address: {socket_address: {address: "127.0.0.1", port_value: 9901}}}\n').kind == "envoy"


@pytest.mark.parametrize(("family", "expected"), [(None, "auto"), ("V4_ONLY", "v4_only"), ("ALL", "all")])
def test_a_pool_of_names_uses_the_address_family_of_its_cluster(family: str | None, expected: str) -> None:
    dns = "type: STRICT_DNS" if family is None else f"type: STRICT_DNS\n    dns_lookup_family: {family}"
    text = (ROOT / "envoy" / "envoy.yaml").read_text().replace("type: STATIC", dns, 1)
    loaded = load(text, "envoy.yaml")
    assert loaded.settings is not None
    assert loaded.settings.pools["vllm"].dns_family == expected


def test_a_service_on_any_free_port_is_no_mistake() -> None:
    text = (
        (ROOT / "envoy" / "envoy.yaml")
        .read_text()
        .replace('grpc: {listen: "127.0.0.1:9002"}', 'grpc: {listen: "127.0.0.1:0"}')
    )
    assert '"127.0.0.1:0"' in text
    assert check(text, "envoy.yaml") == ()


@pytest.mark.parametrize("setting", ["session_headers: [X-User]", "profile_header: X-User", "priority_header: X-User"])
def test_a_header_that_is_sent_as_an_attribute_is_no_mistake(setting: str) -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    place, attribute = "      scheduling:\n", "              - request.path\n"
    assert text.count(place) == text.count(attribute) == 1
    text = text.replace(place, f"{place}        {setting}\n")
    assert [problem.code for problem in check(text, "envoy.yaml")] == ["header-not-sent"]
    sent = text.replace(attribute, f"{attribute}              - \"request.headers['x-user']\"\n")
    assert check(sent, "envoy.yaml") == ()


def test_the_shipped_file_uses_the_default_profile_and_sends_what_it_reads() -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    scheduling, default = read_settings(ROOT / "envoy" / "envoy.yaml").scheduling, Settings().scheduling
    assert scheduling.profile == default.profile == "cache-aware"
    named = f"        session_headers: {list(default.session_headers)}\n"  # a warning if one were not sent
    assert check(text.replace("      scheduling:\n", f"      scheduling:\n{named}"), "envoy.yaml") == ()


def test_where_all_headers_are_sent_none_is_missing() -> None:
    """Shapes B and C"""
    for name in ("envoy-headers-then-body.yaml", "envoy-full-duplex.yaml"):
        text = (ROOT / "envoy" / name).read_text()
        place = "      scheduling:\n"
        assert text.count(place) == 1
        assert check(text.replace(place, f"{place}        priority_header: x-priority\n"), name) == ()


EDS = """
node:
  metadata: {{extproc: {{pools: {{vllm: {{{settings}}}}}}}}}
static_resources:
  clusters:
  - name: vllm
    type: EDS
    eds_cluster_config: {{{name}}}
    load_assignment:
      cluster_name: vllm
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: "10.0.0.9", port_value: 1}}}}}}}}]
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
"""


def test_of_an_eds_cluster_the_endpoints_are_those_of_the_settings() -> None:
    """Its own, if there are any, mean nothing to Envoy."""
    listed = load(EDS.format(settings='endpoints: [{address: "10.0.0.1:8000"}]', name="").encode())
    assert listed.settings is not None, listed.problems
    pool = listed.settings.pools["vllm"]
    assert ([endpoint.address for endpoint in pool.endpoints], pool.service_name) == (["10.0.0.1:8000"], None)
    found = load(EDS.format(settings='discovery: {file: {path: "x.yaml"}}', name="service_name: fleet").encode())
    assert found.settings is not None, found.problems
    pool = found.settings.pools["vllm"]
    assert pool.discovery is not None
    assert (pool.endpoints, pool.service_name) == ((), "fleet")


def test_an_eds_cluster_whose_endpoints_come_from_nowhere_is_a_mistake() -> None:
    (problem,) = load(EDS.format(settings="", name="").encode(), "envoy.yaml").problems
    assert str(problem).endswith("list them, or set discovery: where they come from")
    assert (problem.code, problem.line, problem.field) == (
        "pool-empty",
        3,
        "node.metadata.extproc.pools.vllm.endpoints",
    )


@pytest.mark.parametrize("written", ['"org/phi:4, alias ,"', '["org/phi:4", alias]'])
def test_several_models_of_a_server_stand_between_commas_or_in_a_list(written: str) -> None:
    """case c19"""
    text = f'pools: {{p: {{endpoints: [{{address: "10.0.0.1:8000", model: {written}}}]}}}}\n'
    loaded = load(text, "own.yaml")
    assert loaded.settings is not None
    assert loaded.settings.pools["p"].endpoints[0].model == ("org/phi:4", "alias")


def test_rules_of_whom_to_turn_away_reach_the_settings() -> None:
    text = "scheduling: {shed: [{waiting: 16, priority: 1}, {waiting: 64}], priority_header: X-Priority}"
    scheduling = Settings.model_validate(YAML(typ="safe", pure=True).load(text)).scheduling
    assert [(rule.waiting, rule.priority) for rule in scheduling.shed] == [(16, 1), (64, 0)]
    assert scheduling.priority_header == "x-priority"


@pytest.mark.parametrize(
    "second", ["waiting: 16", "waiting: 8", "waiting: 64, priority: 1", "waiting: 64, priority: 2"]
)
def test_a_rule_without_effect_or_out_of_order_is_a_mistake(second: str) -> None:
    text = f"{OWN}scheduling: {{shed: [{{waiting: 16, priority: 1}}, {{{second}}}]}}\n"
    (problem,) = load(text, "own.yaml").problems
    assert (problem.code, problem.field) == ("setting-value", "scheduling.shed")
    assert "rule 2" in problem.message


def test_an_own_file_says_all_that_its_schema_has() -> None:
    loaded = load(OWN, "own.yaml")
    assert (loaded.kind, loaded.problems) == ("own", ())
    assert loaded.settings is not None
    first, second, third = loaded.settings.pools["chat"].endpoints
    assert (first.weight, first.model, first.metrics_port) == (2, ("big",), 9100)
    assert (second.drained, third.address) == (True, "[fd00::10]:8000")
    assert loaded.settings.scrape.interval_s == 1


def test_json_says_the_same_as_yaml_and_may_be_indented_with_tabs() -> None:
    value = {"pools": {"a": {"endpoints": [{"address": "10.0.0.1:8000"}]}}}
    assert load(json.dumps(value, indent="\t"), "own.json").settings == load(json.dumps(value), "own.json").settings
    assert load(json.dumps(value, indent="\t"), "own.json").settings is not None


def test_options_of_an_endpoint_and_of_a_pool_come_from_envoys_metadata() -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    text = text.replace(
        "{weight: 1.0, drained: false}", '{weight: 0.5, model: "small", metrics_port: 9100, drained: true}'
    )
    text = text.replace("vllm: {}  ", "vllm: {dns_refresh_s: 1, scheduling: {hosts: 2}}  ")
    loaded = load(text, "envoy.yaml")
    assert loaded.settings is not None, loaded.problems
    pool = loaded.settings.pools["vllm"]
    last = pool.endpoints[-1]
    assert (last.weight, last.model, last.metrics_port, last.drained) == (0.5, ("small",), 9100, True)
    assert pool.dns_refresh_s == 1
    assert pool.scheduling is not None
    assert pool.scheduling.hosts == 2


@pytest.mark.parametrize("status", ["DRAINING", "UNHEALTHY"])
def test_a_host_that_envoy_marks_as_out_of_service_is_drained(status: str) -> None:
    """override_host uses a host whatever its health, so the mark must keep it out of our picks."""
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    place = "port_value: 8002}}}\n"
    assert text.count(place) == 1
    loaded = load(text.replace(place, f"{place}          health_status: {status}\n"), "envoy.yaml")
    assert loaded.settings is not None
    assert [e.drained for e in loaded.settings.pools["vllm"].endpoints] == [False, True, False, False]


def test_clusters_and_extensions_that_nobody_here_knows_are_left_alone() -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    strange = """  clusters:
  - name: strange
    connect_timeout: not ours
    cluster_type:
      name: acme
      typed_config: {"@type": type.googleapis.com/acme.v1.Cluster, field_of_acme: [1, {x: y}]}
"""
    loaded = load(text.replace("  clusters:\n", strange, 1), "envoy.yaml")
    assert loaded.settings is not None
    assert list(loaded.settings.pools) == ["vllm"]


def test_names_in_camel_case_are_read_as_envoy_reads_them() -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    for name in ("message_timeout", "failure_mode_allow", "receiving_namespaces", "load_assignment", "lb_endpoints"):
        head, *rest = name.split("_")
        text = text.replace(f"{name}:", head + "".join(part.capitalize() for part in rest) + ":")
    assert check(text, "envoy.yaml") == ()


def test_a_strict_dns_cluster_makes_a_pool_of_names() -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text().replace("type: STATIC", "type: STRICT_DNS", 1)
    text = text.replace('address: "127.0.0.1", port_value: 8001', 'address: "vllm.example", port_value: 8000')
    loaded = load(text, "envoy.yaml")
    assert check(loaded) == ()
    assert loaded.settings is not None
    assert loaded.settings.pools["vllm"].endpoints[0].address == "vllm.example:8000"


@pytest.mark.parametrize("name", ["interval_s", "verify"])
def test_unquoted_yes_is_text_in_an_own_file_and_true_in_envoys(name: str) -> None:
    own = load(f"pools: {{}}\nscrape: {{{name}: yes}}", "own.yaml")
    assert not any(problem.code == "yaml-boolean" for problem in own.problems)
    envoy = load(f"node: {{id: x, metadata: {{extproc: {{scrape: {{{name}: yes}}}}}}}}", "envoy.yaml")
    assert [problem.code for problem in envoy.problems].count("yaml-boolean") == 1


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    (problem,) = load(tmp_path / "none.yaml", "none.yaml").problems
    assert str(problem) == "none.yaml: there is no such file; check the path and the permissions"
    (problem,) = load(tmp_path, "folder").problems
    assert str(problem) == "folder: is a directory; check the path and the permissions"


def test_bytes_that_are_not_utf8_are_one_problem_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"pools:\n  caf\xe9: {}\n")
    (problem,) = load(path, "latin.yaml").problems
    assert str(problem) == "latin.yaml:2: is not UTF-8 text; save it as UTF-8"


def test_a_service_that_reads_a_bad_file_gets_one_exception_with_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("pools: {a: {}}\nscrape: {interval: 3}\n")
    with pytest.raises(ConfigError) as raised:
        read_settings(path)
    assert [problem.code for problem in raised.value.problems] == ["setting-unknown"]
    assert str(raised.value) == f'{path}:2: scrape.interval: unknown setting; did you mean "interval_s"?'


def test_a_service_that_reads_a_good_file_gets_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert read_settings(path).grpc.listen == "0.0.0.0:9002"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc.cli.check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def test_the_command_tells_files_that_cannot_be_read_by_its_exit_status(tmp_path: Path) -> None:
    result = _run("envoy/envoy.yaml", str(tmp_path / "none.yaml"))
    assert result.returncode == 2
    assert "there is no such file" in result.stdout


def test_the_command_prints_json_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("pools: {a: {}}\n")
    result = _run("--format", "json", str(path))
    assert result.returncode == 1
    assert json.loads(result.stdout) == [
        {
            "severity": "error",
            "file": str(path),
            "line": 1,
            "field": "pools.a.endpoints",
            "message": 'pool "a" has no endpoints',
            "cure": "list them, or set discovery: where they come from",
            "code": "pool-empty",
        }
    ]


def test_the_command_lists_its_rules() -> None:
    result = _run("--rules")
    assert result.returncode == 0
    assert "untyped-namespace-missing (error): " in result.stdout


ENVOY_LINES = (ROOT / "envoy" / "envoy.yaml").read_text().splitlines(keepends=True)
_SPELLINGS = st.sampled_from(
    ["", "\t", "- ", ": ", "{", "}", "[", "]", '"', "'", "#", "&a ", "*a", "!x ", "<<: ", "null", "on", "-1", "1e999"]
)
_STRANGE = st.sampled_from(["9" * 5000, "\ud7ff", "\x00", "---\n", "? ", "| ", "@type: x\n", "5", "{}", "[]", "%"])


@pytest.mark.parametrize("index", range(len(ENVOY_LINES)))
def test_a_file_without_one_of_its_lines_is_checked(index: int) -> None:
    text = "".join([*ENVOY_LINES[:index], *ENVOY_LINES[index + 1 :]])
    assert all(problem.message and problem.code for problem in check(text, "changed.yaml"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_change_to_a_file_makes_the_check_raise(data: st.DataObject) -> None:
    lines = list(ENVOY_LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lines) - 1))
        line = lines[index]
        kind = data.draw(st.sampled_from(["cut", "drop", "swap", "insert", "value"]))
        if kind == "cut":
            lines = [*lines[:index], line[: data.draw(st.integers(0, len(line)))]]
        elif kind == "drop":
            lines[index] = ""
        elif kind == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[index], lines[other] = lines[other], line
        elif kind == "insert":
            at = data.draw(st.integers(0, len(line)))
            lines[index] = line[:at] + data.draw(_SPELLINGS | _STRANGE) + line[at:]
        elif ":" in line:
            lines[index] = line.partition(":")[0] + ": " + data.draw(_SPELLINGS | _STRANGE) + "\n"
        lines = lines or [""]
    problems = check("".join(lines), "changed.yaml")
    assert all(problem.message and problem.code and str(problem).startswith("changed.yaml") for problem in problems)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_no_text_at_all_makes_the_reading_raise(source: str | bytes) -> None:
    loaded = load(source, "any")
    assert loaded.settings is not None or any(p.severity is Severity.ERROR for p in loaded.problems)
