"""Does every mistake in a manifest of a vLLM server give exactly its message?

`manifests/good.yaml` has none. `manifests/NAME.patch.yaml` makes one in it by replacing text, and lists all problems
that must come of it. NAME starts with the code it is about; what follows "--" tells variants apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer import Typer
from typer.testing import CliRunner

from extproc.cli.check import check as check_command
from extproc.config.manifests.check import check_manifests
from extproc.config.problems import Problem, Severity
from extproc.pool.deadline import Bounds, longest_s
from tests.support.mistakes import assert_told

MANIFESTS = Path(__file__).parent / "manifests"
GOOD = (MANIFESTS / "good.yaml").read_text()
PATCHES = sorted(MANIFESTS.glob("*.patch.yaml"))
DEPLOYMENT, BUDGET = GOOD.split("---\n")


def problems_of(*texts: str, bounds: Bounds | None = None) -> tuple[Problem, ...]:
    files = [(f"{number}.yaml", text) for number, text in enumerate(texts, start=1)]
    return check_manifests(files, bounds or Bounds())


def edited(*edits: tuple[str, str], text: str = GOOD) -> str:
    for find, replace in edits:
        assert text.count(find) == 1, f"this must stand once in the manifest:\n{find}"
        text = text.replace(find, replace)
    return text


def run(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str]:
    app = Typer()
    app.command()(check_command)
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    return result.exit_code, result.output


class TestOneMistake:
    def test_a_good_manifest_has_none(self) -> None:
        assert problems_of(GOOD) == ()

    @pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.name.removesuffix(".patch.yaml"))
    def test_a_mistake_gives_its_message_at_its_line(self, path: Path) -> None:
        """Case f01: the grace period is too short for long generations."""
        patch: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
        text = edited(*((edit["find"], edit["replace"]) for edit in patch["edits"]))
        assert_told(path, patch, text, problems_of(text))


class TestTheArithmetic:
    @pytest.mark.parametrize("margin", [1.2, 1.5])
    def test_the_number_to_write_is_enough_and_one_less_is_not(self, margin: float) -> None:
        bounds = Bounds(margin=margin)
        needed = int(longest_s(bounds) + 10) + 1
        for grace, count in ((needed, 0), (needed - 1, 1)):
            found = problems_of(edited(("Seconds: 180", f"Seconds: {grace}")), bounds=bounds)
            assert len(found) == count
            assert all(f"write {needed}" in problem.cure for problem in found)

    def test_a_sleep_comes_on_top_of_what_vllm_waits(self) -> None:
        sleep = ("command: [extproc, drain, --self, --wait]", 'command: ["/bin/sh", "-c", "sleep 15"]')
        timeout = ("--shutdown-timeout=5", "--shutdown-timeout=166")
        assert problems_of(edited(sleep, timeout, ("Seconds: 180", "Seconds: 191"))) == ()
        (short,) = problems_of(edited(sleep, timeout, ("Seconds: 180", "Seconds: 190")))
        assert short.message == "190 s are not more than 15 s of preStop + 165 s of the longest request + 10 s to end"
        assert short.cure == "write 191"

    def test_a_sleep_longer_than_any_request_leaves_none(self) -> None:
        edits = (
            ("exec:\n                command: [extproc, drain, --self, --wait]", "sleep: {seconds: 200}"),
            ("Seconds: 180", "Seconds: 211"),
        )
        assert problems_of(edited(*edits)) == ()

    def test_a_drain_with_a_deadline_takes_no_longer(self) -> None:
        (short,) = problems_of(edited(("--wait]", "--wait, --deadline, '170']")))
        assert short.cure == "write 181"
        assert problems_of(edited(("--wait]", "--wait, --deadline=169]"))) == ()

    def test_a_loop_over_the_admin_api_waits_too(self) -> None:
        loop = "until curl -sX POST $ADMIN/v1/endpoints/$POD_IP:8000/drain | grep -q drained; do sleep 1; done"
        assert problems_of(edited(("[extproc, drain, --self, --wait]", f'[sh, -c, "{loop}"]'))) == ()


class TestWhatIsLookedAt:
    def test_every_template_with_a_server_in_it(self) -> None:
        spec = DEPLOYMENT[DEPLOYMENT.index("    metadata:\n      labels") :]
        worker = """\
    metadata: {labels: {app: vllm}}
    spec:
      containers:
        - name: worker
          image: vllm/vllm-openai:v0.32.0
          command: [ray, start, --block]
"""
        group = (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: big}\n"
            f"spec:\n leaderWorkerTemplate:\n  leaderTemplate:\n{spec}  workerTemplate:\n{worker}"
        )
        assert problems_of(group, BUDGET) == ()
        (short,) = problems_of(group.replace("Seconds: 180", "Seconds: 60"), BUDGET)
        leader = "LeaderWorkerSet/big.spec.leaderWorkerTemplate.leaderTemplate.spec"
        assert short.field == f"{leader}.terminationGracePeriodSeconds"

    @pytest.mark.parametrize(
        "runs",
        [
            "image: example/mine:1\n          command: [sh, -c, 'cd /models && exec vllm serve some/model']",
            "image: example/mine:1\n          command: [python3, -m, vllm.entrypoints.openai.api_server]",
            "image: registry.example:5000/vllm/vllm-openai@sha256:0123",
            "image: rocm/vllm:rocm6.4",
        ],
    )
    def test_a_server_is_known_by_what_it_runs(self, runs: str) -> None:
        text = edited(("image: vllm/vllm-openai:v0.32.0", runs), ("Seconds: 180", "Seconds: 30"))
        assert [problem.code for problem in problems_of(text)] == ["kubernetes-grace-short"]

    def test_the_items_of_a_list_are_objects(self) -> None:
        document = "\n".join(f"  {line}" for line in DEPLOYMENT.splitlines())
        text = f"apiVersion: v1\nkind: List\nitems:\n-\n{document}\n"
        assert [problem.code for problem in problems_of(text)] == ["kubernetes-disruption-budget"]

    def test_a_budget_in_another_file_counts(self) -> None:
        assert problems_of(DEPLOYMENT, BUDGET) == ()
        other = BUDGET.replace("app: vllm", "app: other")
        assert [problem.code for problem in problems_of(DEPLOYMENT, other)] == ["kubernetes-disruption-budget"]

    def test_a_budget_in_another_namespace_does_not(self) -> None:
        here, there = (
            text.replace("  name: vllm\n", f"  name: vllm\n  namespace: {name}\n", 1)
            for text, name in ((DEPLOYMENT, "here"), (BUDGET, "there"))
        )
        assert [problem.code for problem in problems_of(here, there)] == ["kubernetes-disruption-budget"]

    def test_a_vllm_configuration_file_may_hold_the_time_out(self) -> None:
        assert problems_of(edited(("--shutdown-timeout=5", "--config=/etc/vllm.yaml"))) == ()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is empty"),
            ("kind: [", "is not YAML"),
            ("a: 1\na: 2\n", "stands here again"),
            ("kind: ConfigMap\n", "no container in it runs vLLM"),
            ("- 1\n", "no container in it runs vLLM"),
        ],
    )
    def test_no_text_is_too_odd(self, text: str, message: str) -> None:
        (problem,) = problems_of(text)
        assert message in str(problem)

    def test_a_template_is_to_be_rendered_first(self) -> None:
        (problem,) = problems_of("image: {{ .Values.image }}\n")
        assert problem.cure == "a template must be rendered first, as by: helm template"


class TestTheCommand:
    def test_the_settings_given_beside_count(self, tmp_path: Path) -> None:
        settings = tmp_path / "extproc.yaml"
        settings.write_text(
            "pools: {vllm: {endpoints: [{address: '10.0.0.1:8000'}]}}\ndrain: {max_tokens: 8192, margin: 1.5}\n"
        )
        code, output = run(settings, "--kubernetes", MANIFESTS / "good.yaml")
        assert code == 1
        assert "write 402" in output  # (5 + 10 + 8,192 x 0.03) x 1.5 + 10
        assert output.endswith("2 files: 1 error, 0 warnings\n")

    def test_without_errors_it_succeeds(self) -> None:
        assert run("--kubernetes", MANIFESTS / "good.yaml") == (0, "1 file: 0 errors, 0 warnings\n")

    def test_it_reads_standard_input(self) -> None:
        code, output = run("--kubernetes", "-", stdin=GOOD.replace("Seconds: 180", "Seconds: 20"))
        assert code == 1
        assert "error: standard input:" in output

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        code, output = run("--kubernetes", tmp_path / "none.yaml")
        assert code == 2
        assert "there is no such file" in output

    def test_errors_alone_fail(self) -> None:
        warned = problems_of(DEPLOYMENT)
        assert [problem.severity for problem in warned] == [Severity.WARNING]
        code, _ = run("--kubernetes", "-", stdin=DEPLOYMENT)
        assert code == 0
