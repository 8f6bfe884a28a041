"""The server: a model behind HTTP, with a page to try it and to teach it.

    app = create_app(classifier, Access(token), learn=True)

Nothing here imports torch: what predicts is given, and may be anything that answers like a
`Classifier`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from dafuse import __version__
from dafuse.errors import DafuseError
from dafuse.product.classifier import Classifier
from dafuse.product.server.batching import Batcher, Served
from dafuse.product.server.description import docs_page
from dafuse.product.server.followed import FollowedFile
from dafuse.product.server.lessons import Lessons, without_path
from dafuse.product.server.metrics import Metrics
from dafuse.product.server.routes import Service, bearing, for_all, router
from dafuse.product.server.security import (
    Access,
    Envelope,
    Limits,
    LocalHosts,
    Memory,
    Refusal,
)
from dafuse.product.server.staging import Staging

PAGE = Path(__file__).parent / "page"
ABOUT = """An image classifier that keeps learning new classes and keeps no old images.
Images are the files of a form (multipart/form-data); they are held in memory only.
A file that cannot be read is named, with the reason; the others are still used.
A refused request gets a status of 400 or more and {"error": "a sentence"}."""


def create_app(
    served: Served,
    access: Access | None = None,
    limits: Limits | None = None,
    *,
    learn: bool = False,
    name: str = "",
) -> FastAPI:
    """Build the server of a model.

    Args:
        served: what answers: a classifier, or an exported model
        access: the token, and what needs it
        limits: how much is too much
        learn: whether those who have the token may teach and change the classifier
        name: the model's name; default: that of its folder
    """
    access, limits, metrics = access or Access(), limits or Limits(), Metrics()
    classifier = served if isinstance(served, Classifier) else None
    lessons = None
    if learn and classifier is not None:
        lessons = Lessons(classifier, Staging(limits.staged), metrics)
    if not name:
        name = "model" if classifier is None else classifier.folder.path.resolve().name
    memory = Memory(limits.arriving)
    batcher = Batcher(served, limits.queue, metrics)
    metrics.gauge("upload_bytes", lambda: memory.held)
    metrics.gauge("classes", lambda: len(served.classes))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = served.watching() if isinstance(served, FollowedFile) else nullcontext()
        async with batcher.running(), metrics.shared():
            with watching:
                yield
        if lessons is not None:
            lessons.stop()

    app = FastAPI(
        title="dafuse",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own pages need scripts from the network
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = Service(
        name, served, classifier, limits, access, metrics, memory, batcher, lessons
    )
    app.include_router(router, dependencies=[Depends(bearing)] if access.everywhere else [])
    app.include_router(for_all)
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE))
    if not access.everywhere:
        app.add_middleware(LocalHosts)
    app.add_middleware(Envelope, metrics=metrics)  # the last is the outermost
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(DafuseError, _not_now)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(Exception, _broken)
    return app


async def _page() -> Response:
    return FileResponse(PAGE / "index.html")


async def _docs(request: Request) -> Response:
    return HTMLResponse(docs_page(request.app.openapi()))


def _error(status: int, sentence: str, skipped: Sequence[str] = ()) -> JSONResponse:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    content = {"error": sentence, **({"skipped": skipped} if skipped else {})}
    return JSONResponse(content, status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _error(error.status, error.sentence, error.skipped)


async def _not_now(request: Request, error: Exception) -> Response:
    classifier = request.app.state.service.classifier
    sentence = str(error) if classifier is None else without_path(str(error), classifier)
    return _error(409, sentence)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error(422, f"{first['loc'][-1]}: {first['msg']}")


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    said = {404: f"there is nothing at {path}", 405: f"{path} cannot be asked by {request.method}"}
    return _error(error.status_code, said.get(error.status_code, str(error.detail)))


async def _broken(request: Request, error: Exception) -> Response:
    return _error(500, "this should not have happened; the server's log says more")
