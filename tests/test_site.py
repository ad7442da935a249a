"""The documentation's site: is it complete, does it load nothing from elsewhere, and are its mistakes errors?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

ROOT = Path(__file__).parent.parent
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\" >]+)|<link[^>]*\shref=\"?([^\" >]+)[^>]*>")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(site),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """No font, script or picture: who reads the pages is nobody's business."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {a or b for page in pages for a, b in LOADED.findall(page.read_text())}
    assert any(each.endswith(".css") for each in loaded)
    assert [each for each in loaded if each.startswith(("http:", "https:", "//"))] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\"?(https?:)?//|@import \"?http", style.read_text()), style


def test_files_of_the_repository_that_pages_link_to_can_be_read_there(site: Path) -> None:
    page = (site / "envoy.html").read_text()
    assert 'href="repository/envoy/envoy.yaml.html"' in page
    shown = (site / "repository" / "envoy" / "envoy.yaml.html").read_text()
    assert "envoy.load_balancing_policies.override_host" in shown
    assert "repository/" not in (site / "search" / "search_index.json").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](envoy.md)", "contains a link 'envoy.md', but the target is not found"),
        ("[a](index.md#no-such-part)", "contains a link 'index.md#no-such-part'"),
        ("[a](../no-such-file.yaml)", "contains a link '../no-such-file.yaml'"),
        ("![a](no-such-picture.svg)", "contains a link 'no-such-picture.svg'"),
        (None, 'are not included in the "nav" configuration'),
        ("[a](../extra.yaml) `[b](../no.yaml)` [c](index.md#a-part)\n\n```\n[d](../no.yaml)\n```\n", None),
    ],
    ids=["page", "anchor", "file", "picture", "not in nav", "all is well"],
)
def test_mistakes_of_the_pages_are_errors(text: str | None, said: str | None, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "extra.yaml").write_text("a: 1\n")
    (docs / "index.md").write_text("# Index\n\n## A part\n\n" + (text or "Nothing.\n"))
    if text is None:
        (docs / "extra.md").write_text("# Extra\n")
    config = tmp_path / "mkdocs.yml"
    own = {"INHERIT": str(ROOT / "mkdocs.yml"), "hooks": [str(ROOT / "docs" / "hooks" / "repository.py")]}
    config.write_text(yaml.safe_dump({**own, "docs_dir": "docs", "nav": [{"Index": "index.md"}]}))
    done = build(config, tmp_path / "site")
    if said is None:
        assert done.returncode == 0, done.stderr
        page = (tmp_path / "site" / "index.html").read_text()
        assert 'href="repository/extra.yaml.html"' in page
        assert "[b](../no.yaml)" in page
        assert "[d](../no.yaml)" in page
    else:
        assert done.returncode == 1
        assert said in done.stderr
