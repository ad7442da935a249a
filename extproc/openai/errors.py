"""How does an error of ours look to a client of the OpenAI API?"""

from __future__ import annotations

import json

from extproc.decision import Rejection, RejectionReason

_TYPES = {
    RejectionReason.NO_ENDPOINTS: "server_error",
    RejectionReason.INVALID: "invalid_request_error",
}


def error_body(rejection: Rejection) -> bytes:
    """The JSON body; `code` is the rejection's reason, which clients may match on."""
    error = {
        "message": rejection.message,
        "type": _TYPES[rejection.reason],
        "param": None,
        "code": str(rejection.reason),
    }
    return json.dumps({"error": error}).encode()
