"""How do links from the documentation into the repository work on the site, too?

In the repository `[envoy.yaml](../envoy/envoy.yaml)` leads to the file. The site has no such file, so each one that a
page links to becomes a page of its own: Markdown as it is, a folder as a list, anything else as a block of code. These
pages stand under `repository/`, outside the navigation and the search. A link to what there is not stays as it is, and
the strict build then names it.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

FOLDER = "repository"
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sh": "sh",
    ".svg": "xml",
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^()#\s]+)(#[^()\s]*)?\)")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LARGEST = 400_000  # bytes


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to, and for those that these link to in turn."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    waiting = [docs / file.src_uri for file in files.documentation_pages()]
    seen: set[Path] = set()
    while waiting:
        for target in _leads_to(waiting.pop()):
            if target in seen or not target.exists() or not _is_ours(target, root, docs):
                continue
            seen.add(target)
            waiting.append(target)
            page = File.generated(
                config, _src_uri(target, root), content=_content(target, root), inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to these pages."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    here = page.file.src_uri
    source = docs / here if not here.startswith(f"{FOLDER}/") else _origin(here, root)

    def lead(match: re.Match[str]) -> str:
        target = _target(match[2], source)
        if target is None or not target.exists():
            return match[0]
        if _is_ours(target, root, docs):
            uri = _src_uri(target, root)
        elif target.is_relative_to(docs):
            uri = target.relative_to(docs).as_posix()
        else:
            return match[0]
        if files.get_file_from_path(uri) is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{match[3] or ''})"

    return "".join(_LINK.sub(lead, part) if prose else part for prose, part in _parts(markdown))


def _is_ours(target: Path, root: Path, docs: Path) -> bool:
    """Whether a page is to be made of it: the site has all of `docs`, but no page of a folder."""
    return target.is_relative_to(root) and (not target.is_relative_to(docs) or target.is_dir())


def _leads_to(source: Path) -> Iterator[Path]:
    """What the page of a file or folder links to, as far as that is a path."""
    if source.is_dir():
        yield from _files_in(source)
    if source.suffix != ".md" or not source.is_file():
        return
    for prose, part in _parts(source.read_text(encoding="utf-8")):
        if prose:
            for match in _LINK.finditer(part):
                target = _target(match[2], source)
                if target is not None:
                    yield target


def _target(link: str, source: Path) -> Path | None:
    """The path that a link names; None: it leads elsewhere."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    return Path(os.path.normpath(source.parent / link))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces: whether it is prose, where links count, or code."""
    position = 0
    for match in re.compile(f"{_FENCE.pattern}|{_CODE.pattern}", re.MULTILINE | re.DOTALL).finditer(text):
        # A link's own text may be code: such a piece belongs to the prose.
        if (
            match["fence"] is None
            and text[match.start() - 1 : match.start()] == "["
            and text[match.end() : match.end() + 1] == "]"
        ):
            continue
        yield True, text[position : match.start()]
        yield False, match[0]
        position = match.end()
    yield True, text[position:]


def _src_uri(target: Path, root: Path) -> str:
    relative = target.relative_to(root).as_posix()
    return f"{FOLDER}/{relative}" if target.suffix == ".md" else f"{FOLDER}/{relative}.md"


def _origin(uri: str, root: Path) -> Path:
    """The file that such a page is about."""
    relative = uri.removeprefix(f"{FOLDER}/")
    target = root / relative
    return target if target.is_file() else root / relative.removesuffix(".md")


def _files_in(folder: Path) -> list[Path]:
    """All that is in it and in its folders, but for what is hidden or made."""
    found = (each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
    return [folder / each for each in sorted(found) if not any(part.startswith((".", "__")) for part in each.parts)]


def _content(target: Path, root: Path) -> str:
    name = target.relative_to(root).as_posix()
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    if target.is_dir():
        names = [each.relative_to(target).as_posix() for each in _files_in(target)]
        listed = "\n".join(f"- [{each}]({target.name}/{each})" for each in names)
        return f"{hidden}# {name}/\n\n{listed}\n"
    if target.suffix == ".md":
        return hidden + target.read_text(encoding="utf-8")
    if target.stat().st_size > _LARGEST:
        return f"{hidden}# {name}\n\nToo long to be shown here: {target.stat().st_size:,} bytes.\n"
    language = _LANGUAGES.get(target.suffix, "text")
    return f"{hidden}# {name}\n\n~~~~{language}\n{target.read_text(encoding='utf-8').rstrip()}\n~~~~\n"
