"""To whom may a request go whose model no server is known to serve?

The usual case needs none of this: `Pool.members_serving` names the servers. A request is refused only when every server
of its pool told its models not long ago, and not one of them the request's. Of a server that did not tell, the
operator's word (an endpoint's `model`) is no ground: adapters are loaded at run time.
"""

from __future__ import annotations

from extproc.decision import Rejection, RejectionReason
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.request import ApiKind, InferenceRequest

NAME_CHARS = 100  # it is the client's text


def members_for(
    pool: Pool, request: InferenceRequest | None, refuse_within_s: float | None, now: float
) -> tuple[Member, ...]:
    """The members a request may go to, healthy or not; empty in a pool that is not: it is to be refused.

    `request`: None if it was not read. `refuse_within_s`: a list of models older than this is no ground to refuse;
    None: nothing is.
    """
    if request is None or request.model is None:
        return pool.members
    serving = pool.members_serving(request.model)
    if serving:
        return serving
    if refuse_within_s is None or request.kind is ApiKind.OTHER:
        return pool.members  # of an API we do not know, `model` may mean something else
    return tuple([m for m in pool.members if m.told_models is None or now - m.models_at_s > refuse_within_s])


def no_such_model(pool: Pool, model: str) -> Rejection:
    """The refusal, in vLLM's own words. The servers should be asked before it is sent: the model may have been loaded
    since they were, and whoever loaded it uses it at once."""
    message = f"The model `{shown(model)}` does not exist."
    return Rejection(RejectionReason.MODEL_NOT_FOUND, 404, message, doubtful=pool.name)


def shown(model: str) -> str:
    """The name of a model as it may be shown: of what a client wrote, 100 printable characters."""
    return "".join([char if char.isprintable() else "?" for char in model[:NAME_CHARS]])
