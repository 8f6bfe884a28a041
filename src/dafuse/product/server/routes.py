"""Every address of the server, and what it does."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST

from dafuse import __version__
from dafuse.data.class_names import same_name
from dafuse.product.server import description as say
from dafuse.product.server.batching import Batcher, Served
from dafuse.product.server.lessons import Lessons
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.security import Access, Limits, Memory, Refusal, overloaded
from dafuse.product.server.staging import check_name
from dafuse.product.server.uploads import NoImage, read_away, uploads

if TYPE_CHECKING:
    from dafuse.product.classifier import Classifier

PIECE = 2**18  # bytes of a file that are sent at once
BEARER = HTTPBearer(scheme_name="token", auto_error=False)
router = APIRouter()  # all of it needs the token if the server listens beyond this machine
for_all = APIRouter()  # none of it ever needs the token


@dataclass(frozen=True)
class Service:
    """The parts that all routes share."""

    name: str  # of the model
    served: Served
    classifier: "Classifier | None"  # the same model; None: an exported file is served
    limits: Limits
    access: Access
    metrics: Metrics
    memory: Memory
    batcher: Batcher
    lessons: Lessons | None  # None: it cannot be taught here


async def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Shared = Annotated[Service, Depends(_service)]
Token = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]


async def bearing(service: Shared, token: Token) -> None:
    """Refuse a request without the token. OpenAPI says so of every route that depends on this."""
    service.access.require(token.credentials if token else None)


async def teaching(service: Shared, token: Token) -> Lessons:
    """The lessons, for those who may teach; refuse all others."""
    if service.lessons is None:
        raise Refusal(403, "this server cannot be taught: start it with --allow-learn")
    await bearing(service, token)
    return service.lessons


Teaching = Annotated[Lessons, Depends(teaching)]


def refused(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": say.Error} for status in statuses}


@router.post(
    "/predict",
    summary="What images show, with calibrated probabilities",
    description="A file that cannot be read is answered in its place by its name and an error. "
    "Where none can be read, the request is refused.",
    openapi_extra=say.SENDS_FILES,
    responses=refused(400, 401, 408, 409, 413, 415, 422, 503),
)
async def predict(
    request: Request,
    service: Shared,
    top: Annotated[int, Query(ge=1, le=1000, description="how many classes are named")] = 5,
) -> say.Predictions:
    if not service.batcher.has_place_for(1):  # so that refusing costs next to nothing
        await read_away(request, service.limits)
        raise overloaded()
    async with uploads(request, service.limits, service.memory) as sent:
        found = sent.placed(await service.batcher.predict(sent.images, top))
        named = [
            say.NotRead(file=file.name, error=one.sentence)
            if isinstance(one, NoImage)
            else say.Predicted.of(file.name, one, top)
            for file, one in zip(sent.files, found, strict=True)
        ]
    return say.Predictions(predictions=named)


@router.get(
    "/classes",
    summary="What the model knows, and what may be sent",
    description="Of many classes it names a part; more come by `offset`, or by `query`.",
    responses=refused(401, 422),
)
async def classes(
    service: Shared,
    query: Annotated[
        str, Query(max_length=200, description="a part of the names, in either case; default: any")
    ] = "",
    limit: Annotated[
        int, Query(ge=0, le=say.MOST, description="how many of the classes found are named")
    ] = say.MOST,
    offset: Annotated[int, Query(ge=0, description="how many are left out before them")] = 0,
) -> say.Classes:
    await asyncio.to_thread(service.served.follow)
    limits, lessons = service.limits, service.lessons
    version = None if lessons is None else lessons.version  # before the step that it stands for
    last = None if lessons is None else await asyncio.to_thread(lambda: lessons.last_step)
    records = None if service.classifier is None else service.classifier.version.classes
    names = service.served.classes if records is None else [one.name for one in records]
    wanted = same_name(query)
    found = [row for row, name in enumerate(names) if not wanted or wanted in same_name(name)]
    shown = found[offset : offset + limit]
    return say.Classes(
        model=service.name,
        classes=[names[row] for row in shown],
        records=None if records is None else [say.Record.of(records[row]) for row in shown],
        total=len(names),
        found=len(found),
        teaching=lessons is not None,
        staged={} if lessons is None else lessons.staging.counts,
        version=version,
        last_step=None if last is None else say.Step.of(last),
        flip=None if lessons is None else lessons.flip,
        limits=say.Allowed(body_bytes=limits.body, files=limits.files, pixels=limits.pixels),
    )


@router.post(
    "/classes/{name}/images",
    summary="Stage images of a class, new or known, for the next lesson",
    description="Files that cannot be read are skipped and named. Where none can be read, the "
    "request is refused and nothing is staged.",
    status_code=201,
    openapi_extra=say.SENDS_FILES,
    responses=refused(400, 401, 403, 408, 413, 415, 422, 503),
)
async def stage(name: str, request: Request, service: Shared, lessons: Teaching) -> say.Added:
    name = check_name(name)
    async with uploads(request, service.limits, service.memory) as sent:
        lessons.staging.require_place(len(sent.images))  # before anything is decoded
        found = await service.batcher.decode(sent.images)
        staged, skipped = await asyncio.to_thread(  # it may wait for a class to be renamed
            lessons.staging.add, name, sent, found, service.served.classes
        )
    return say.Added(name=name, staged=staged, skipped=skipped)


@router.delete(
    "/classes/{name}/images",
    summary="Drop the images of a class that wait to be learned",
    responses=refused(401, 403, 404, 422),
)
async def unstage(name: str, lessons: Teaching) -> say.StagedCount:
    await asyncio.to_thread(lessons.staging.drop, name)  # it may wait, too
    return say.StagedCount(name=name, staged=0)


@router.post(
    "/learn",
    summary="Learn what is staged, in the background",
    status_code=202,
    responses=refused(401, 403, 409, 422),
)
async def learn(
    lessons: Teaching,
    response: Response,
    flip: Annotated[
        bool | None,
        Query(
            description="whether mirrored images are learned, too, which helps with few; "
            "false for letters, signs, left and right hands and the like; default: as in the "
            "model's last lesson, in a first one true; refused where the method does not train"
        ),
    ] = None,
) -> say.LessonState:
    job = lessons.start(flip)
    response.headers["Location"] = "/learn"
    return say.LessonState.of(job)


@router.get(
    "/learn",
    summary="How far the lesson is, or how the last one went",
    responses=refused(401, 403),
)
async def lesson(lessons: Teaching) -> say.LessonState:
    return say.LessonState.of(lessons.job)


@router.delete(
    "/classes/{name}",
    summary="Forget a class",
    responses=refused(401, 403, 404, 409, 422),
)
async def forget(
    name: str,
    lessons: Teaching,
    for_good: Annotated[
        bool,
        Query(
            description="also delete all older versions of the model, and the name of the class "
            "from its history: undo cannot bring the class back, and has nothing left to take back"
        ),
    ] = False,
) -> say.Forgot:
    done = await asyncio.to_thread(lessons.forget, name, for_good)
    return say.Forgot(
        name=done.names[0],
        for_good=done.for_good,
        versions=done.versions,
        remains=done.remains,
        **say.known(lessons.classifier.classes),
    )


@router.post(
    "/classes/{name}/rename",
    summary="Give a class another name",
    responses=refused(401, 403, 404, 409, 422),
)
async def rename(
    name: str, lessons: Teaching, to: Annotated[str, Query(description="its name from now on")]
) -> say.Renamed:
    await asyncio.to_thread(lessons.rename, name, to)
    return say.Renamed(name=check_name(to), **say.known(lessons.classifier.classes))


@router.post(
    "/undo",
    summary="Take back the last step of the model",
    responses=refused(401, 403, 409, 422),
)
async def undo(
    lessons: Teaching,
    version: Annotated[
        str | None,
        Query(
            description="the version that the model must be at, or nothing is undone: as "
            "/classes tells it, or its number; default: whatever the last step is"
        ),
    ] = None,
) -> say.Undone:
    undone = await asyncio.to_thread(lessons.undo, version)
    return say.Undone(undone=say.Step.of(undone), **say.known(lessons.classifier.classes))


@router.get(
    "/history",
    summary="Everything that was done to the model",
    responses=refused(401, 404, 409, 422),
)
async def history(
    service: Shared,
    limit: Annotated[
        int, Query(ge=1, le=say.MOST, description="how many steps, of the last ones")
    ] = say.MOST,
) -> say.History:
    if service.classifier is None:
        raise Refusal(404, "an exported file has no history: serve the model's folder to see it")
    if not service.classifier.classes:
        return say.History(steps=[], total=0, undoable=False)
    folder = service.classifier.folder
    versions, _ = await asyncio.to_thread(folder.read, folder.readable_history)
    return say.History.of(versions, limit)


@router.get(
    "/export",
    summary="The model as one .onnx file that predicts elsewhere",
    response_class=StreamingResponse,
    responses={200: {"content": {say.FILE: {}}}, **refused(401, 403, 409, 422)},
)
async def export(
    service: Shared,
    lessons: Teaching,
    int8: Annotated[
        bool, Query(description="weights of one byte: smaller, faster, a little less exact")
    ] = False,
) -> StreamingResponse:
    made, file = await asyncio.to_thread(lessons.export, int8)
    headers = {
        "Content-Length": str(file.stat().st_size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(service.name, safe='')}.onnx",
    }
    return StreamingResponse(_pieces(made, file), media_type=say.FILE, headers=headers)


def _pieces(made: ExitStack, path: Path) -> Iterator[bytes]:
    with made, path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


@for_all.get("/healthz", summary="Whether the server answers")
async def health(service: Shared) -> say.Health:
    return say.Health(status="ok", classes=len(service.served.classes), version=__version__)


@router.get(
    "/metrics",
    summary="Counters for Prometheus",
    response_class=PlainTextResponse,
    responses=refused(401),
)
async def measured(service: Shared) -> Response:
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
