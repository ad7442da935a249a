"""`extproc init --kubernetes`: is the folder it writes one that kubectl takes, and says it what was wished?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from extproc.cli._shipped import shipped_folder
from extproc.cli.main import app
from extproc.config.check import check
from extproc.config.load import load
from extproc.config.manifests.check import check_manifests
from extproc.config.settings import DrainSettings
from extproc.config.starter.kubernetes import Cluster, files
from extproc.config.starter.wish import WishError

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, to build the manifests")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    environment = {"COLUMNS": "500", "NO_COLOR": "1"}
    return lambda *arguments: CliRunner().invoke(app, ["init", "--kubernetes", *arguments], env=environment)


def built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def only(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"].startswith(name))
    return found


def test_the_folder_has_the_shipped_manifests_as_they_are(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("--out", "mine").exit_code == 0
    shipped = shipped_folder("kubernetes")
    for path, text in shipped.items():
        if path.startswith("base/"):
            assert (tmp_path / "mine" / path).read_text() == text
    assert (tmp_path / "mine" / "envoy.yaml").read_text() == shipped["base/envoy.yaml"]
    assert check(tmp_path / "mine" / "envoy.yaml") == ()


@needs_kubectl
def test_what_is_wished_stands_in_the_manifests_that_kubectl_builds(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run(
        *("--namespace", "prod", "--image", "registry:5000/team/extproc:2", "--model", "Qwen/Qwen3-8B"),
        *("--autoscale", "6", "--profile", "session"),
    )
    assert result.exit_code == 0, result.output
    objects = built(tmp_path / "prod")
    spaces = {each["metadata"].get("namespace", "prod") for each in objects}
    assert spaces == {"prod"}
    assert only(objects, "RoleBinding", "extproc")["subjects"][0]["namespace"] == "prod"
    assert only(objects, "Namespace", "prod")
    (container,) = only(objects, "Deployment", "extproc")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry:5000/team/extproc:2"
    (container,) = only(objects, "Deployment", "vllm")["spec"]["template"]["spec"]["containers"]
    assert "--model=Qwen/Qwen3-8B" in container["args"]
    scaled = only(objects, "ScaledObject", "vllm")["spec"]
    assert scaled["maxReplicaCount"] == 6
    assert scaled["triggers"][0]["metadata"]["scalerAddress"] == "extproc.prod.svc:9002"
    text = only(objects, "ConfigMap", "envoy")["data"]["envoy.yaml"]
    settings = load(text, "envoy.yaml").settings
    assert settings is not None
    assert settings.scheduling.profile == "session"
    assert settings.pools["vllm"].autoscale is not None
    assert settings.pools["vllm"].autoscale.max_replicas == 6
    manifests = yaml.safe_dump_all(objects).encode()
    assert list(check_manifests([("built", manifests)], DrainSettings().bounds)) == []


@needs_kubectl
def test_servers_that_run_already_are_followed_and_none_is_started(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("--service", "my-vllm").exit_code == 0
    objects = built(tmp_path / "llm")
    left = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert not [name for _, name in left if name == "vllm"]
    assert {("Deployment", "extproc"), ("Deployment", "gateway"), ("RoleBinding", "extproc")} <= left
    settings = load(only(objects, "ConfigMap", "envoy")["data"]["envoy.yaml"], "envoy.yaml").settings
    assert settings is not None
    discovery = settings.pools["vllm"].discovery
    assert discovery is not None
    assert discovery.kubernetes is not None
    assert discovery.kubernetes.service == "my-vllm"


def test_it_never_overwrites_unless_forced(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "llm" / "envoy.yaml"
    file.parent.mkdir()
    file.write_text("mine")
    result = run()
    assert result.exit_code == 1
    assert "llm/envoy.yaml is there already and stays as it is; --force overwrites" in result.stderr
    assert [each.name for each in file.parent.iterdir()] == ["envoy.yaml"]
    assert file.read_text() == "mine"
    assert run("--force").exit_code == 0
    assert file.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "a:1"], "--server: does not go with --kubernetes"),
        (["--listen", "81"], "--listen: does not go with --kubernetes"),
        (["--shape", "full-duplex"], "--shape: does not go with --kubernetes"),
        (["--out", "-"], "--out: is a folder with --kubernetes; name one"),
        (["--model", "a,b"], "--model: one is served by a vLLM; give one"),
        (["--namespace", "Prod"], '--namespace: "Prod" is no name in Kubernetes'),
        (["--profile", "least-load"], '--profile: unknown "least-load"; did you mean "least-loaded"?'),
    ],
)
def test_what_is_mistyped_is_told(run: Callable[..., Result], tmp_path: Path, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.replace("│", " ").split()).replace("Invalid value for ", "")
    assert list(tmp_path.iterdir()) == []


def test_options_for_manifests_need_kubernetes() -> None:
    result = CliRunner().invoke(app, ["init", "--server", "a:1", "--image", "x"], env={"COLUMNS": "500"})
    assert result.exit_code == 2
    assert "goes with --kubernetes only" in result.stderr


@pytest.mark.parametrize(
    ("wished", "option"),
    [
        ({"service": "a.b"}, "service"),
        ({"image": "two words"}, "image"),
        ({"image": "x:"}, "image"),
        ({"service": "s", "model": "m"}, "model"),
        ({"service": "s", "max_servers": 4}, "autoscale"),
        ({"max_servers": 1}, "autoscale"),
    ],
)
def test_what_does_not_fit_is_told_with_the_option(wished: dict[str, Any], option: str) -> None:
    with pytest.raises(WishError) as failure:
        Cluster(**wished)
    assert failure.value.option == option


@pytest.mark.parametrize(
    ("image", "entry"),
    [
        ("extproc", {"newName": "extproc"}),
        ("reg:5000/extproc", {"newName": "reg:5000/extproc"}),
        ("reg:5000/extproc:1.2-x", {"newName": "reg:5000/extproc", "newTag": "1.2-x"}),
        ("e@sha256:" + "0a" * 32, {"newName": "e", "digest": "sha256:" + "0a" * 32}),
    ],
)
def test_an_image_is_taken_apart(image: str, entry: dict[str, str]) -> None:
    text = files(shipped_folder("kubernetes"), Cluster(image=image))["kustomization.yaml"]
    assert yaml.safe_load(text)["images"] == [{"name": "vllm-extproc", **entry}]
