"""The admin HTTP server's status page: / for browsers, and /status.json, which it and `extproc top` ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from extproc.admin.query import number
from extproc.admin.status_document import document

INDEX = """\
  /           in a browser: the status page
  /status.json  what that shows, as JSON; ?since=: of the history only what is newer than that Unix time
"""


def routes(view: Callable[[float | None], Mapping[str, Any]], index: str) -> list[web.RouteDef]:
    """Their routes. `view`: what the page shows, with the history since a Unix time, None: all of it. `index`: what
    others than browsers get at /."""
    shown = document()  # now: the files may be another version's when somebody asks

    async def page(request: web.Request) -> web.Response:
        if not _browser(request):
            return web.Response(text=index, headers={"Vary": "Accept"})
        return web.Response(
            text=shown.text,
            content_type="text/html",
            headers={
                "Content-Security-Policy": shown.policy,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-cache",
                "Vary": "Accept",
            },
        )

    async def status(request: web.Request) -> web.Response:
        try:
            since = _since(request.query.get("since"))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(view(since), headers={"Cache-Control": "no-store"})

    return [web.get("/", page), web.get("/status.json", status)]


def _browser(request: web.Request) -> bool:
    """Browsers say that they take HTML; curl and scripts take anything."""
    return "text/html" in request.headers.get("Accept", "").lower()


def _since(text: str | None) -> float | None:
    """Raises ValueError, for the asker."""
    if text is None:
        return None
    value = number(text)
    if not math.isfinite(value):
        raise ValueError(f'since: "{text[:40]}" is no Unix time; take the last of history.times')
    return value
