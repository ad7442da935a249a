"""The status page as it is sent: one document that loads nothing from elsewhere, for browsers alone."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from extproc.admin import status_document
from extproc.admin.status_document import document
from tests.support.status_fleet import Made

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGE = Path(status_document.__file__).parent / "page"


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def inside(tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", document().text, re.DOTALL)
    assert match is not None
    return match[1]


async def test_a_browser_gets_the_page_and_a_script_the_list_of_pages() -> None:
    async with Made(vllm=1).served() as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/", headers=BROWSER) as answer:
            assert answer.content_type == "text/html"
            assert await answer.text() == document().text
            headers = answer.headers
        async with session.get(f"{url}/") as answer:
            assert answer.content_type == "text/plain"
            assert "/status.json" in await answer.text()
    assert headers["Content-Security-Policy"] == document().policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Vary"] == "Accept"


async def test_the_json_has_of_the_history_what_is_newer_than_asked_for() -> None:
    made = Made(vllm=2)
    made.hour(3)
    async with made.served() as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/status.json") as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            every = await answer.json()
        times = every["history"]["times"]
        async with session.get(f"{url}/status.json", params={"since": str(times[1])}) as answer:
            assert (await answer.json())["history"]["times"] == times[2:]
        async with session.get(f"{url}/status.json", params={"since": "yesterday"}) as answer:
            assert answer.status == 400
            assert await answer.json() == {
                "error": 'since: "yesterday" is no Unix time; take the last of history.times'
            }
        async with session.post(f"{url}/status.json") as answer:
            assert answer.status == 405


def test_the_page_is_one_document_that_names_no_other_address() -> None:
    parser = _Elements()
    parser.feed(document().text)
    loads = [
        (tag, value)
        for tag, attributes in parser.found
        for name, value in attributes.items()
        if name in ("src", "srcset", "href", "action", "data", "poster", "style") and tag != "a"
    ]
    assert [tag for tag, _ in loads] == ["link"]  # its icon
    assert str(loads[0][1]).startswith("data:")
    links = [attributes["href"] for tag, attributes in parser.found if tag == "a"]
    assert links
    assert not [link for link in links if link is None or link.startswith(("http", "/"))]  # it may stand under a path
    addresses = re.findall(r"""(?:https?:)?//[a-z0-9][^\s"'`)]*""", document().text)
    assert [each for each in addresses if "www.w3.org/2000/svg" not in each] == []  # which is a name, and not asked
    assert not re.search(r"@import|url\(", inside("style"))


def test_its_policy_allows_its_own_style_and_script_by_their_hashes_and_nothing_else() -> None:
    policy = dict(each.split(" ", 1) for each in document().policy.split("; "))
    assert policy.pop("default-src") == "'none'"
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(inside(tag).encode()).digest()).decode()
        assert policy.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert policy == {
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@pytest.mark.parametrize("script", sorted(PAGE.glob("*.js")), ids=lambda path: path.name)
def test_no_script_makes_markup_of_text(script: Path) -> None:
    text = script.read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "</script" not in text


def test_all_parts_of_the_page_are_in_it() -> None:
    assert {each.name for each in PAGE.iterdir()} == {"status.html", "status.css", *status_document._SCRIPTS}
    for part in PAGE.glob("*.js"):
        assert part.read_text() in inside("script")
