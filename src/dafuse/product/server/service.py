"""What the routes share: the model, the limits, the queue and, where allowed, the lessons."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dafuse.product.server.access import Access
from dafuse.product.server.batching import Batcher, Predictor
from dafuse.product.server.lessons import Lessons
from dafuse.product.server.limits import Limits, Memory, Refusal
from dafuse.product.server.metrics import Metrics

BEARER = HTTPBearer(scheme_name="token", auto_error=False)


@dataclass(frozen=True)
class Service:
    predictor: Predictor
    limits: Limits
    access: Access
    metrics: Metrics
    memory: Memory
    batcher: Batcher
    lessons: Lessons | None  # None: it cannot be taught here


async def service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Here = Annotated[Service, Depends(service)]
Given = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]


async def bearing(here: Here, given: Given) -> None:
    """For whoever bears the token. What depends on this says so in the description, too."""
    here.access.require(given.credentials if given else None)


async def teaching(here: Here, given: Given) -> Lessons:
    """For whoever may teach it."""
    if here.lessons is None:
        raise Refusal(403, "this server cannot be taught: start it with --allow-learn")
    await bearing(here, given)
    return here.lessons


Teaching = Annotated[Lessons, Depends(teaching)]
