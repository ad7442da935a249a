"""Which model does a multipart form ask for?

Audio requests carry a file of many megabytes and a few short fields. Only the form's first kilobytes are looked at: a
field behind the file stays unknown, and the request is routed by load.
"""

from __future__ import annotations

import re

_LOOK_AT_BYTES = 16 * 1024
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,200})', re.IGNORECASE)
_FIELD_NAME = re.compile(rb'[;\s]name="?model"?\s*(;|\r\n|$)', re.IGNORECASE)
_LONGEST_NAME = 512


def is_form(content_type: str) -> bool:
    return content_type.lstrip()[:10].lower() == "multipart/"


def model_in_form(body: bytes, content_type: str) -> str | None:
    """The field `model`, or None: no boundary, no such field near the beginning, not closed."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    delimiter = b"--" + found[1].encode("utf-8", "replace")
    model = None
    for part in body[:_LOOK_AT_BYTES].split(delimiter)[1:-1]:  # the last one is cut, or the form's end
        head, blank, value = part.partition(b"\r\n\r\n")
        if blank and _FIELD_NAME.search(head) and len(value) <= _LONGEST_NAME:
            model = value.removesuffix(b"\r\n").decode("utf-8", "replace") or model
    return model
