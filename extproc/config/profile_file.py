"""What did the load test find, by the file that a pool's settings name (`autoscale.profile`)?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from extproc.autoscale.profile import Profile
from extproc.config import codes
from extproc.config.codes import Finding
from extproc.config.load import Loaded
from extproc.config.problems import in_a_line
from extproc.config.reading import not_yaml, repeated_keys, text_of
from extproc.config.schema import findings_of
from extproc.config.tree import Node, TreeError, build, compose


def read_profile(path: Path) -> Profile:
    """Raises ValueError that says what is wrong with the file, and where in it."""
    found = _read(path)
    if isinstance(found, Profile):
        return found
    raise ValueError(in_a_line([replace(finding.problem(str(path)), cure="") for finding in found]))


def profile_findings(loaded: Loaded) -> Iterator[Finding]:
    """Of each pool in a configuration, that its profile cannot be used."""
    if loaded.settings is None or loaded.tree is None:
        return
    above = () if loaded.kind == "own" else ("node", "metadata", "extproc")
    for name, pool in loaded.settings.pools.items():
        if pool.autoscale is None or pool.autoscale.profile is None:
            continue
        try:
            read_profile(Path(pool.autoscale.profile))
        except ValueError as error:
            place = loaded.tree.at(*above, "pools", name, "autoscale", "profile")
            yield Finding(codes.AUTOSCALE_PROFILE, place, str(error))


def _read(path: Path) -> Profile | list[Finding]:
    text = text_of(path)
    if isinstance(text, Finding):
        return [text]
    try:
        tree, remarks = build(compose(text), envoy=False)
    except TreeError as error:
        return [not_yaml(error)]
    twice = repeated_keys(remarks)
    if twice:
        return twice
    if not isinstance(tree.value, dict):
        return [Finding(codes.FILE_NOT_A_MAPPING, Node("", tree.line, None), "is no profile of extproc calibrate")]
    try:
        profile = Profile.model_validate(tree.plain())
        _ = profile.calibration  # what it is for
    except ValidationError as error:
        return findings_of(error, tree)
    except ValueError as error:
        return [Finding(codes.SETTING_VALUE, Node("", tree.line, None), str(error))]
    return profile
