"""Which models does a server say it serves?

`GET /v1/models` of the OpenAI API: `{"object": "list", "data": [{"id": "llama", "parent": null, ...}]}`. vLLM lists
every served name there, and each loaded LoRA adapter with its base model as `parent`; a request may name any of them.
"""

from __future__ import annotations

import orjson


def read_models(page: bytes) -> frozenset[str] | None:
    """The names; None: the page is no such list, has an entry without a name, or names nothing.

    An empty list says that the server is not what we take it for, rather than that it serves nothing.
    """
    try:
        document = orjson.loads(page)
    except orjson.JSONDecodeError:
        return None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    names = [entry.get("id") if isinstance(entry, dict) else None for entry in entries]
    texts = [name for name in names if isinstance(name, str) and name]
    return frozenset(texts) if texts and len(texts) == len(names) else None
