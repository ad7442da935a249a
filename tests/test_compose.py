"""Does docker-compose.yml name only things that exist and fit each other, and do its commands work together?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from extproc.admin.guard import TOKEN_VARIABLE
from extproc.cli.main import app
from extproc.config.settings import Settings
from tests.support.compose import COMPOSE, ENVOY, FILE, SERVICES, mounts, volumes
from tests.support.envoy_wheels import ALL, ROOT
from tests.support.programs import program

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().splitlines()
OURS = f"vllm-extproc:{PROJECT['version']}"
EXACT = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+(-[a-z0-9-]+)?")
SIMULATED = ("vllm-1", "vllm-2", "vllm-3", "vllm-4")
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())
GRAFANA = ROOT / "deploy" / "grafana"


@cache
def options(service: str) -> dict[str, Any]:
    """The command's options, as the command line itself reads them; it raises on one that does not exist."""
    name, *args = SERVICES[service]["command"]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return dict(command.make_context(name, list(args)).params)


def flags() -> dict[str, str]:
    """Prometheus' own."""
    pairs = (word.removeprefix("--").partition("=") for word in SERVICES["prometheus"]["command"])
    return {name: value for name, _, value in pairs}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def listening() -> dict[int, str]:
    """Who listens on which port of the network that all share, and at which address; each port once."""
    listener = ENVOY["static_resources"]["listeners"][0]["address"]["socket_address"]
    admin = ENVOY["admin"]["address"]["socket_address"]
    settings = Settings.model_validate(ENVOY["node"]["metadata"]["extproc"])
    found = [
        (listener["port_value"], listener["address"]),
        (admin["port_value"], admin["address"]),
        (port_of(settings.grpc.listen), settings.grpc.listen.rpartition(":")[0]),
        (port_of(options("extproc")["admin"]), options("extproc")["admin"].rpartition(":")[0]),
        *((options(name)["port"], options(name)["host"]) for name in SIMULATED),
        (port_of(flags()["web.listen-address"]), flags()["web.listen-address"].rpartition(":")[0]),
        (3000, "0.0.0.0"),  # Grafana's defaults
    ]
    assert len({port for port, _ in found}) == len(found), "two listen on one port"
    return dict(found)


def endpoint_ports(cluster: str) -> list[int]:
    found = next(c for c in ENVOY["static_resources"]["clusters"] if c["name"] == cluster)
    endpoints = found["load_assignment"]["endpoints"][0]["lb_endpoints"]
    return [e["endpoint"]["address"]["socket_address"]["port_value"] for e in endpoints]


class TestTheComposeToolItself:
    def read(self, file: Path) -> subprocess.CompletedProcess[str]:
        command = [shutil.which("docker-compose")]
        if command == [None]:
            newer = ["docker", "compose"]
            there = shutil.which("docker") and subprocess.run([*newer, "version"], capture_output=True).returncode == 0
            command = newer if there else [program("docker-compose", "docker-compose")]
        command += ["--project-directory", str(ROOT), "--file", str(file), "config"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def test_it_accepts_the_file_and_reads_from_it_what_the_tests_do(self) -> None:
        done = self.read(FILE)
        assert done.returncode == 0, done.stderr
        understood = yaml.safe_load(done.stdout)["services"]
        assert {name: each["image"] for name, each in understood.items()} == {
            name: each["image"] for name, each in SERVICES.items()
        }
        assert all(each["read_only"] and each["user"] for each in understood.values())

    def test_it_does_not_accept_a_mistyped_key(self, tmp_path: Path) -> None:
        broken = tmp_path / "docker-compose.yml"
        broken.write_text(FILE.read_text().replace("    network_mode:", "    network_mod:", 1))
        assert self.read(broken).returncode != 0


def test_every_mounted_file_exists() -> None:
    for service in SERVICES:
        for inside, outside in mounts(service).items():
            assert outside.exists(), f"{service}: {inside} would be an empty folder: {outside} does not exist"


def test_every_image_is_of_one_exact_version() -> None:
    images = {name: each["image"] for name, each in SERVICES.items()}
    assert all(EXACT.fullmatch(image) for image in images.values()), images
    ours = {name for name, image in images.items() if image == OURS}
    assert ours == {"extproc", *SIMULATED}
    assert [name for name, each in SERVICES.items() if "build" in each] == ["extproc"]


def test_envoys_version_is_one_that_the_tests_run_on() -> None:
    image, _, tag = SERVICES["envoy"]["image"].partition(":v")
    assert image == "envoyproxy/envoy"
    assert tag in ALL


def test_no_container_is_root_or_may_write_outside_of_its_volumes() -> None:
    for name, service in SERVICES.items():
        user = service["user"].partition(":")[0]
        assert int(user) > 0, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(volume.endswith(":ro") for volume in service.get("volumes", ()) if volume.startswith(".")), name
    named = {name: set(volumes(name)) for name in SERVICES if volumes(name)}
    assert named == {"prometheus": {flags()["storage.tsdb.path"]}, "grafana": {"/var/lib/grafana"}}
    assert {volume for name in named for volume in volumes(name).values()} == COMPOSE["volumes"].keys()


def test_the_service_and_envoy_read_the_same_mounted_configuration() -> None:
    assert mounts("extproc")[str(options("extproc")["envoy"])] == ROOT / "envoy" / "envoy.yaml"
    _, flag, path = SERVICES["envoy"]["command"]
    assert flag == "-c"
    assert mounts("envoy")[path] == ROOT / "envoy" / "envoy.yaml"


def test_the_simulated_servers_listen_where_envoy_expects_the_fleet() -> None:
    assert [options(name)["port"] for name in SIMULATED] == endpoint_ports("vllm")
    assert {options(name)["count"] for name in SIMULATED} == {1}


def test_every_published_port_is_listened_on_and_only_this_machine_reaches_it() -> None:
    published = [line.split(":") for service in SERVICES.values() for line in service.get("ports", ())]
    assert sorted(int(inside) for _, _, inside in published) == [3000, 8080, 9003, 9090]
    for host, outside, inside in published:
        assert (host, outside) == ("127.0.0.1", inside)
        assert listening()[int(inside)] == "0.0.0.0", "on loopback it could not be reached from outside the container"


def test_everything_shares_envoys_network_since_all_its_addresses_are_loopback_ones() -> None:
    for name in SERVICES.keys() - {"envoy"}:
        assert SERVICES[name]["network_mode"] == "service:envoy", name
        assert "ports" not in SERVICES[name], name


def test_actions_want_the_token_of_who_started_it() -> None:
    """Without a value the variable is passed on from the shell, or not set at all."""
    assert SERVICES["extproc"]["environment"] == [TOKEN_VARIABLE]


def test_docker_kills_the_service_only_after_it_has_had_its_time() -> None:
    settings = Settings.model_validate(ENVOY["node"]["metadata"]["extproc"])
    needed_s = settings.shutdown_notice_s + settings.shutdown_grace_s
    assert int(SERVICES["extproc"]["stop_grace_period"].removesuffix("s")) > needed_s


class TestPrometheus:
    def test_its_files_are_mounted_where_it_reads_them(self) -> None:
        config = Path(flags()["config.file"])
        assert mounts("prometheus")[str(config)] == ROOT / "deploy" / "prometheus" / "prometheus.yaml"
        for rules in PROMETHEUS["rule_files"]:
            assert mounts("prometheus")[str(config.parent / rules)] == ROOT / "deploy" / "prometheus" / rules

    def test_it_scrapes_services_of_the_file(self) -> None:
        targets = [
            target
            for job in PROMETHEUS["scrape_configs"]
            for static in job["static_configs"]
            for target in static["targets"]
        ]
        assert [target.rpartition(":")[0] for target in targets] == ["127.0.0.1"] * len(targets)
        admin = port_of(options("extproc")["admin"])
        assert {port_of(target) for target in targets} >= {admin}
        assert {port_of(target) for target in targets} <= listening().keys()

    def test_it_has_the_flags_that_it_is_given(self) -> None:
        told = subprocess.run(
            [program("prometheus", "prometheus"), "--help"], capture_output=True, text=True, check=False
        )
        for name in flags():
            assert f"--{name}=" in told.stdout + told.stderr, name


class TestGrafana:
    def source(self) -> dict[str, Any]:
        (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
            "datasources"
        ]
        return dict(source)

    def provider(self) -> dict[str, Any]:
        (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "extproc.yaml").read_text())[
            "providers"
        ]
        return dict(provider)

    def test_its_folders_are_mounted_where_it_reads_them(self) -> None:
        for folder in (GRAFANA / "provisioning").iterdir():
            assert folder.name in ("datasources", "dashboards")
            assert mounts("grafana")[f"/etc/grafana/provisioning/{folder.name}"] == folder
        # Each file has to say which version of the format it is.
        files = [yaml.safe_load(path.read_text()) for path in (GRAFANA / "provisioning").glob("*/*")]
        assert [file["apiVersion"] for file in files] == [1, 1]

    def test_it_asks_the_prometheus_of_the_file_and_knows_how_often_that_scrapes(self) -> None:
        source = self.source()
        assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)
        assert source["url"] == f"http://127.0.0.1:{port_of(flags()['web.listen-address'])}"
        (job,) = (job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "extproc")
        assert source["jsonData"]["timeInterval"] == job["scrape_interval"]

    def test_the_dashboard_is_in_the_folder_that_is_looked_into_and_asks_this_data_source(self) -> None:
        provider = self.provider()
        inside = f"{provider['options']['path']}/extproc.json"
        assert provider["type"] == "file"
        assert mounts("grafana")[inside] == GRAFANA / "extproc.json"
        assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == inside
        dashboard = json.loads((GRAFANA / "extproc.json").read_text())
        asked = {
            target["datasource"]["uid"]
            for panel in dashboard["panels"]
            for each in (panel, *panel.get("panels", ()))
            for target in each.get("targets", ())
            if "datasource" in target
        } | {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel}
        variables = {f"${{{each['name']}}}": each for each in dashboard["templating"]["list"]}
        for name in asked - {self.source()["uid"]}:  # a variable offers all data sources of one type, the default first
            assert (variables[name]["type"], variables[name]["query"]) == ("datasource", self.source()["type"])
        assert asked

    def test_nobody_logs_in_with_a_password_that_everybody_knows(self) -> None:
        environment = SERVICES["grafana"]["environment"]
        assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
        assert (environment["GF_AUTH_BASIC_ENABLED"], environment["GF_AUTH_DISABLE_LOGIN_FORM"]) == ("false", "true")


class TestTheImage:
    def after(self, instruction: str) -> list[str]:
        return [line.removeprefix(f"{instruction} ") for line in DOCKERFILE if line.startswith(f"{instruction} ")]

    def test_it_is_made_of_an_exact_version(self) -> None:
        bases = [line.split()[0] for line in self.after("FROM")]
        assert all(EXACT.fullmatch(base) for base in bases), bases

    def test_it_runs_as_the_user_that_both_ways_to_deploy_name(self) -> None:
        assert self.after("USER") == ["10001"]
        assert {SERVICES[name]["user"] for name in ("extproc", *SIMULATED)} == {"10001:10001"}
        (made,) = (line for line in self.after("RUN") if "useradd" in line)
        assert "--uid 10001" in made

    def test_what_is_copied_exists_and_reaches_the_build(self) -> None:
        copied = [word for line in self.after("COPY") if "--from" not in line for word in line.split()[:-1]]
        ignored = (ROOT / ".dockerignore").read_text().split()
        assert all((ROOT / name).exists() for name in copied), copied
        needed = {*copied, *PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]}
        assert not [name for name in needed for each in ignored if f"{name}/".startswith(f"{each}/")]
        assert all(any(f"{name}/".startswith(f"{each}/") for each in copied) for name in needed)

    def test_it_has_every_optional_part_that_a_setting_may_ask_for(self) -> None:
        (line,) = (line for line in self.after("RUN") if "pip install" in line)
        (extras,) = re.findall(r"\.\[([a-z,]+)\]", line)
        tools = {"envoy", "demo", "report", "docs", "dev"}  # for people, not for `extproc serve`
        assert set(extras.split(",")) == PROJECT["optional-dependencies"].keys() - tools

    def test_its_ports_and_its_check_are_those_of_the_defaults(self) -> None:
        defaults = Settings()
        ports = [port_of(defaults.grpc.listen), port_of(defaults.admin.listen)]
        assert self.after("EXPOSE") == [" ".join(map(str, ports))]
        assert f"http://{defaults.admin.listen}/healthz" in "\n".join(DOCKERFILE)
        assert self.after("CMD") == ['["serve", "--envoy", "/etc/extproc/envoy.yaml"]']
        assert str(options("extproc")["envoy"]) == "/etc/extproc/envoy.yaml"


@pytest.mark.envoy
@pytest.mark.slow
def test_its_commands_work_together() -> None:
    """With real Envoy and real Prometheus, on the shipped ports, in a network of their own."""
    prometheus = program("prometheus", "prometheus")
    alone = ["unshare", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here: it takes Linux, and root or CAP_SYS_ADMIN")
    command = [*alone, sys.executable, "-m", "tests.support.compose", prometheus]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["left_out"] == ["grafana"]
    assert seen["states"] == {f"127.0.0.1:{port}": "ready" for port in endpoint_ports("vllm")}
    assert seen["answer"]["status"] == 200
    assert seen["answer"]["server"] in {f"vllm-{port}" for port in endpoint_ports("vllm")}
    assert f"http://127.0.0.1:{port_of(options('extproc')['admin'])}/metrics" in seen["scraped"]
    assert "ExtprocDown" in seen["alerts"]


def test_the_manual_names_the_same_images_and_the_same_ports() -> None:
    manual = (ROOT / "docs" / "docker.md").read_text()
    images = set(re.findall(r"(?:vllm-extproc|envoyproxy/envoy):[\w.]+", manual))
    assert images == {SERVICES["extproc"]["image"], SERVICES["envoy"]["image"]}
    published = {line.split(":")[1] for line in SERVICES["envoy"]["ports"]}
    assert set(re.findall(r"<http://127\.0\.0\.1:(\d+)", manual)) == published
    (stop_s,) = re.findall(r"--stop-timeout (\d+)", manual)
    assert f"{stop_s}s" == SERVICES["extproc"]["stop_grace_period"]
    assert set(re.findall(r"docker compose \w+ (vllm-\d)", manual)) <= set(SIMULATED)
