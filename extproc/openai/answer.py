"""Under which id does a server keep the response it is giving?

Its body begins with it: `{"id":"resp_...",...` or, streamed, `event: response.created` and
`data: {"response":{"id":"resp_...",...`. So the first kilobytes are enough, and nothing is parsed. A text of the model
or of the client cannot pass for it: within JSON its quotes are escaped.
"""

from __future__ import annotations

import re

_ID = re.compile(rb'"id"\s*:\s*"(resp[A-Za-z0-9_.:-]{1,251})"')


def response_id_of(head: bytes) -> str | None:
    """The first id of a response in the beginning of a body; None: there is none, or it is cut off."""
    found = _ID.search(head)
    return None if found is None else found[1].decode()
