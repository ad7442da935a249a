"""How does an error of ours look to a client of the OpenAI API?"""

from __future__ import annotations

import json

from extproc.decision import Rejection, RejectionReason

_TYPES = {
    RejectionReason.NO_ENDPOINTS: "server_error",
    RejectionReason.INVALID: "invalid_request_error",
    RejectionReason.OVERLOADED: "rate_limit_error",
    RejectionReason.MODEL_NOT_FOUND: "NotFoundError",
}
_CODES = {RejectionReason.OVERLOADED: "rate_limit_exceeded"}  # what clients of OpenAI know already


def error_body(rejection: Rejection) -> bytes:
    """The JSON body; `code`, which clients may match on, is the rejection's reason or OpenAI's own word for it."""
    error: dict[str, object] = {
        "message": rejection.message,
        "type": _TYPES[rejection.reason],
        "param": None,
        "code": _CODES.get(rejection.reason, str(rejection.reason)),
    }
    if rejection.reason is RejectionReason.MODEL_NOT_FOUND:  # to the letter what vLLM says
        error |= {"param": "model", "code": rejection.status}
    return json.dumps({"error": error}).encode()
