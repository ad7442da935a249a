"""What is wrong with these Kubernetes manifests?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extproc.config import codes
from extproc.config.codes import Finding
from extproc.config.manifests.pods import Budget, Pod, budget_of, objects, pods_in
from extproc.config.manifests.rules import NO_SERVER, pod_findings
from extproc.config.problems import Problem
from extproc.config.reading import not_yaml, repeated_keys, text_of
from extproc.config.tree import Node, TreeError, build, compose_all
from extproc.pool.deadline import Bounds, longest_s


def check_manifests(files: Sequence[tuple[str, Path | str | bytes]], bounds: Bounds) -> tuple[Problem, ...]:
    """All problems of the files, each with its name: in the order of the files and their lines. Never raises for what
    they hold. They are looked at together: a PodDisruptionBudget may stand in another file than its pods."""
    found: list[list[Finding]] = []
    pods: list[tuple[int, Pod]] = []
    budgets: list[Budget] = []
    for number, (_, source) in enumerate(files):
        documents, findings = _read(source)
        found.append(findings)
        for document in documents:
            for thing in objects(document):
                pods += [(number, pod) for pod in pods_in(thing)]
                budget = budget_of(thing)
                budgets += [budget] if budget is not None else []
    for number, pod in pods:
        found[number] += pod_findings(pod, budgets, longest_s(bounds))
    if files and not pods and not any(found):
        found[0].append(Finding(NO_SERVER, None, "no container in it runs vLLM"))
    problems: list[Problem] = []
    for (name, _), findings in zip(files, found, strict=True):
        distinct = {finding.problem(name): None for finding in findings}
        problems += sorted(distinct, key=lambda p: (p.line or 0, p.field, p.code, p.message))
    return tuple(problems)


def _read(source: Path | str | bytes) -> tuple[list[Node], list[Finding]]:
    """The documents of a file, and what is wrong with their spelling."""
    text = text_of(source)
    if isinstance(text, Finding):
        return [], [text]
    documents: list[Node] = []
    findings: list[Finding] = []
    try:
        for root in compose_all(text):
            plain, _ = build(root, envoy=False)
            tree, remarks = build(root, envoy=False, path=_name_of(plain))
            documents.append(tree)
            findings += repeated_keys(remarks)
    except TreeError as error:
        cure = "a template must be rendered first, as by: helm template" if "{{" in text else None
        return [], [not_yaml(error, cure)]
    if not documents:
        findings.append(Finding(codes.FILE_EMPTY, None, "is empty", cure="name a file with Kubernetes manifests"))
    return documents, findings


def _name_of(document: Node) -> str:
    """What the paths in an object begin with: Deployment/vllm."""
    kind, name = document.get("kind"), document.at("metadata", "name")
    if kind is None:
        return ""
    return f"{kind.value}/{name.value}" if name is not None else str(kind.value)
