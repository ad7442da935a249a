"""The status page in a real browser: what a person sees, with its policy in force, whatever names there are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from extproc.endpoint import Address, Endpoint
from tests.support.chromium import Browser, Page, chromium
from tests.support.envoy_config import free_port
from tests.support.programs import program
from tests.support.status_fleet import Advice, Made, advised

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ROWS = "document.querySelectorAll('.pool tbody')[0].rows"


pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium(program("chromium", "chromium")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with browser.page() as opened:
        await opened.look()
        yield opened


async def shown(page: Page, url: str) -> None:
    await page.open(f"{url}/")
    await page.until("document.querySelectorAll('.pool').length > 0")


async def cells(page: Page, row: int) -> list[str]:
    found: list[str] = await page.run(
        f"[...{ROWS}[{row}].cells].filter((cell) => !cell.hidden).map((cell) => cell.innerText)"
    )
    return found


async def test_the_fleet_its_warnings_its_recommendation_and_its_picks_are_seen(page: Page) -> None:
    made = Made(Advice(vllm=advised()), vllm=5)
    made.hour(60)
    made.trouble()
    async with made.served() as url:
        await shown(page, url)
        text = await page.text()
        assert await page.run(f"{ROWS}.length") == 5
        # The worst first; signs and words, not colour alone.
        assert (await cells(page, 0))[:2] == ["10.0.0.3:8000", "✕unhealthy"]
        assert (await cells(page, 1))[-1] == "by the operator, waits for requests of others, 60 s left"
        assert (await cells(page, 0))[-1] == "connection refused"
        for words in (
            "warning: pool vllm: 1 of 5 endpoints is unhealthy: 10.0.0.3:8000 (connection refused)",
            "5 endpoints: 1 unhealthy, 1 draining, 3 ready",
            "Recommended servers: 4",
            "up from 3 to 4: 2.5 wait per server",
            "holds 768 of 800 tokens",
        ):
            assert words in text
        assert await page.run("document.title") == "(2) extproc"
        # Tables have headings that say what they head, and pictures say what they show.
        assert await page.run("[...document.querySelectorAll('table')].every((each) => each.caption)")
        assert await page.run("[...document.querySelectorAll('thead th')].every((each) => each.scope === 'col')")
        assert await page.run(f"{ROWS}[0].cells[0].tagName + {ROWS}[0].cells[0].scope") == "THrow"
        labels = await page.run("[...document.querySelectorAll('svg')].map((each) => each.getAttribute('aria-label'))")
        assert "Waiting, the last 10 min: now" in " ".join(labels)
        assert await page.run("document.querySelectorAll('.card path.line[d^=M]').length") >= 7
        await _sorts(page)
        assert page.complaints == []
        assert {each.split("?")[0] for each in page.requested} == {f"{url}/", f"{url}/status.json"}


async def _sorts(page: Page) -> None:
    """By the column of which the heading is pressed; what is unknown is last both ways."""
    for way, least in (("descending", False), ("ascending", True)):
        await page.click(".pool thead th:nth-child(6) button")
        assert await page.run("document.querySelector('.pool thead th:nth-child(6)').ariaSort") == way
        usages = await page.run(f"[...{ROWS}].map((row) => row.cells[5].innerText.trim())")
        assert usages[-1] == "–"
        numbers = [int(each.rstrip("%")) for each in usages[:-1]]
        assert numbers == sorted(numbers, reverse=not least)


async def test_names_are_text_whatever_they_are(page: Page) -> None:
    """A model may be named by a client, a pool and an endpoint by who configures them."""
    made = Made(Advice(**{HOSTILE: advised(reason=HOSTILE)}), **{HOSTILE: 1})
    made.pools[0].set_endpoints([Endpoint(Address.of("10.0.0.1", 8000), hostname=HOSTILE)])
    made.hour(2, picks=0)
    body = json.dumps({"model": HOSTILE, "prompt": "a secret prompt " * 100}).encode()
    made.pick(body=body, path=f"/v1/completions/{HOSTILE}")
    made.pick(body=body)
    made.pools[0].scrape_failed(Address.of("10.0.0.1", 8000), HOSTILE, made.now, answered=False, refused=False)
    made.now += 20.0
    async with made.served() as url:
        await shown(page, url)
        text = await page.text()
        assert text.count(HOSTILE) >= 5
        assert "secret" not in text
        assert "owned" not in await page.run("document.title")
        assert await page.run("document.querySelectorAll('img, body script:not(:last-of-type)').length") == 0
        assert page.complaints == []


async def test_two_hundred_endpoints_several_pools_and_an_empty_one(page: Page) -> None:
    made = Made(chat=200, embed=1, empty=0)
    made.hour(3)
    async with made.served() as url:
        await shown(page, url)
        assert await page.run("document.querySelectorAll('.pool').length") == 3
        assert await page.run(f"{ROWS}.length") == 25
        await page.click(".pool .tools button")
        assert await page.run(f"{ROWS}.length") == 200
        await page.run("document.querySelector('.pool input').value = '0.0.17'")
        await page.run("document.querySelector('.pool input').dispatchEvent(new Event('input'))")
        assert await page.run(f"[...{ROWS}].map((row) => row.cells[0].innerText)") == [
            "10.0.0.17:8000",
            *[f"10.0.0.{number}:8000" for number in range(170, 180)],
        ]
        assert "There are no endpoints." in await page.text()
        assert "critical: pool empty has no endpoints" in await page.text("#warnings")
        # In a narrow window nothing but the tables is wider than it.
        await page.look(width=360, height=700)
        assert await page.run("document.documentElement.scrollWidth <= 360")
        assert page.complaints == []


async def test_it_says_when_the_service_is_away_and_goes_on_when_it_is_back(page: Page) -> None:
    made = Made(vllm=1)
    made.hour(2)
    port = free_port()
    async with made.served(port=port) as url:
        await shown(page, url)
        assert await page.run("document.getElementById('away').hidden")
    await page.until("!document.getElementById('away').hidden")
    assert "The service does not answer" in await page.text("#away")
    assert await page.run(f"{ROWS}.length") == 1  # what it said last stays
    other = Made(vllm=3)
    other.hour(1, picks=0)
    async with other.served(port=port):
        await page.until("document.getElementById('away').hidden")
        assert await page.run(f"{ROWS}.length") == 3


async def test_it_asks_only_for_what_is_new_and_not_at_all_while_it_is_paused(page: Page) -> None:
    made = Made(vllm=1)
    made.hour(5)
    asked: list[float | None] = []

    def view(since: float | None) -> Any:
        asked.append(since)
        made.now += 10.0
        made.look()
        return made.view(since)

    async with made.served(view) as url:
        await shown(page, url)
        await page.until("document.querySelector('.card svg').getAttribute('aria-label').includes('70 s')")
        assert asked[0] is None
        assert asked[1] == made.unix_s - 10.0 * (len(asked) - 1)
        await page.click("#pause")
        await page.run("new Promise((done) => setTimeout(done, 100))")  # an answer may be on its way
        count = len(asked)
        await page.run("new Promise((done) => setTimeout(done, 2200))")
        assert len(asked) == count
        await page.click("#pause")
        await page.until("document.getElementById('pause').ariaPressed === 'false'")


async def test_it_is_dark_for_those_who_prefer_that(page: Page) -> None:
    made = Made(vllm=1)
    async with made.served() as url:
        seen = []
        for dark in (False, True):
            await page.look(dark=dark)
            await shown(page, url)
            colour = await page.run("getComputedStyle(document.body).backgroundColor")
            seen.append(sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))))
            picture = await page.picture()
            assert picture.startswith(b"\x89PNG")
        light, dark_ = seen
        assert light > 600
        assert dark_ < 150
