"""Every address of the server, and what it does."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from dafuse import __version__
from dafuse.data.images import UnreadableImage
from dafuse.product.server import metrics, schema
from dafuse.product.server.lessons import Job
from dafuse.product.server.limits import Refusal, overloaded
from dafuse.product.server.service import Here, Teaching
from dafuse.product.server.staging import check_name
from dafuse.product.server.uploads import read_away, uploads

FILES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}}
                    },
                }
            }
        },
    }
}


def refused(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schema.Error} for status in statuses}


router = APIRouter()  # beyond this machine, all of it needs the token
for_all = APIRouter()


@router.post(
    "/predict",
    summary="What pictures show, with calibrated probabilities",
    openapi_extra=FILES,
    responses=refused(400, 401, 408, 409, 413, 415, 422, 503),
)
async def predict(
    request: Request,
    here: Here,
    top: Annotated[int, Query(ge=1, le=1000, description="how many classes are named")] = 5,
) -> schema.Predictions:
    if not here.batcher.has_place_for(1):  # so that refusing costs next to nothing
        await read_away(request, here.limits)
        raise overloaded()
    async with uploads(request, here.limits, here.memory) as pictures:
        answers = await here.batcher.predict(pictures, top)
        found = []
        for picture, answer in zip(pictures, answers, strict=True):
            if isinstance(answer, UnreadableImage):
                raise Refusal(422, f"{picture.name} cannot be read: {answer}")
            found.append(
                schema.Predicted(
                    file=picture.name,
                    name=answer.name,
                    probability=answer.probability,
                    unknown=answer.unknown,
                    familiarity=answer.familiarity,
                    top=[schema.Share(name=n, probability=p) for n, p in answer.top[:top]],
                )
            )
    return schema.Predictions(predictions=found)


@router.get(
    "/classes", summary="What the model knows, and what may be sent", responses=refused(401)
)
async def classes(here: Here) -> schema.Classes:
    limits, lessons = here.limits, here.lessons
    await asyncio.to_thread(here.predictor.follow)
    version = None if lessons is None else lessons.version  # before the step that it stands for
    return schema.Classes(
        classes=here.predictor.classes,
        teaching=lessons is not None,
        staged={} if lessons is None else lessons.staging.counts,
        version=version,
        last_step=None if lessons is None else lessons.last_step,
        flip=None if lessons is None else lessons.classifier.version.flip,
        limits=schema.Allowed(body_bytes=limits.body, files=limits.files, pixels=limits.pixels),
    )


@router.post(
    "/classes/{name}/images",
    summary="Stage pictures of a class, new or known, for the next lesson",
    status_code=201,
    openapi_extra=FILES,
    responses=refused(400, 401, 403, 408, 413, 415, 422, 503),
)
async def stage(name: str, request: Request, here: Here, lessons: Teaching) -> schema.StagedCount:
    name = check_name(name)
    async with uploads(request, here.limits, here.memory) as pictures:
        staged = await asyncio.to_thread(
            lessons.staging.add, name, pictures, here.predictor.classes
        )
    return schema.StagedCount(name=name, staged=staged)


@router.delete(
    "/classes/{name}/images",
    summary="Drop the pictures of a class that wait to be learned",
    responses=refused(401, 403, 404, 422),
)
async def unstage(name: str, lessons: Teaching) -> schema.StagedCount:
    lessons.staging.drop(name)
    return schema.StagedCount(name=name, staged=0)


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
            description="whether pictures are also learned mirrored, which makes more of few; "
            "false for letters, signs, left and right hands and the like; default: as in the "
            "model's last lesson, in a first one true"
        ),
    ] = None,
) -> schema.Lesson:
    job = lessons.start(flip)
    response.headers["Location"] = "/learn"
    return _lesson(job)


@router.get(
    "/learn",
    summary="How far the lesson is, or how the last one went",
    responses=refused(401, 403),
)
async def lesson(lessons: Teaching) -> schema.Lesson:
    return _lesson(lessons.job)


@router.post(
    "/undo",
    summary="Take back the last step of the model",
    responses=refused(401, 403, 409),
)
async def undo(
    lessons: Teaching,
    version: Annotated[
        str | None,
        Query(
            description="that the model must be at, else nothing is undone: the version of "
            "/classes, or its number; default: whatever the last step is"
        ),
    ] = None,
) -> schema.Undone:
    undone = await asyncio.to_thread(lessons.undo, version)
    return schema.Undone(undone=undone, classes=lessons.classifier.classes)


@for_all.get("/healthz", summary="Whether the server answers")
async def health(here: Here) -> schema.Health:
    return schema.Health(status="ok", classes=len(here.predictor.classes), version=__version__)


@router.get(
    "/metrics",
    summary="Counters for Prometheus",
    response_class=PlainTextResponse,
    responses=refused(401),
)
async def measured(here: Here) -> Response:
    return Response(here.metrics.text(), media_type=metrics.CONTENT_TYPE)


def _lesson(job: Job | None) -> schema.Lesson:
    if job is None:
        return schema.Lesson(
            job=None, state="idle", pictures={}, phase="", waiting_for=None, progress=0,
            seconds=0, seconds_left=None, report=None, error=None,
        )  # fmt: skip
    state, progress = job.state, job.progress  # the state first: it is what changes last
    return schema.Lesson(
        job=job.number,
        state=state,
        pictures=job.pictures,
        phase=progress.phase,
        waiting_for=progress.waiting_for if state == "running" else None,
        progress=1 if state == "done" else progress.fraction,
        seconds=job.seconds,
        seconds_left=progress.seconds_left if state == "running" else None,
        report=job.report,
        error=job.error,
    )
