"""Requests and answers of the server, described for OpenAPI and on a page without scripts."""

from html import escape
from typing import Any, Literal

from pydantic import BaseModel, Field

from dafuse.product.predictor import Prediction
from dafuse.product.server.lessons import Job
from dafuse.product.summary import WORDS, steps_of
from dafuse.product.version import ClassRecord, Version

MOST = 1000  # classes or steps in an answer
FILE = "application/octet-stream"
SHOWN = ("summary", "description")  # of each address, on the page
SENDS_FILES = {
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


class Share(BaseModel):
    name: str
    probability: float


class Predicted(BaseModel):
    file: str
    name: str = Field(description='the class; "unknown" where the image is unlike every class')
    probability: float = Field(
        description="that of the most probable class, also for an unknown image"
    )
    unknown: bool
    familiarity: float = Field(
        description="how much the image is like any of the classes; low: unknown"
    )
    top: list[Share] = Field(description="the most probable classes")

    @classmethod
    def of(cls, file: str, answer: Prediction, top: int) -> "Predicted":
        return cls(
            file=file,
            name=answer.name,
            probability=answer.probability,
            unknown=answer.unknown,
            familiarity=answer.familiarity,
            top=[Share(name=name, probability=share) for name, share in answer.top[:top]],
        )


class NotRead(BaseModel):
    """A file that cannot be read."""

    file: str
    error: str = Field(description="one sentence: what is wrong and what to do")


class Predictions(BaseModel):
    predictions: list[Predicted | NotRead] = Field(
        description="one for each file, in their order; what cannot be read has an error instead"
    )


class Allowed(BaseModel):
    """The most that a request may have."""

    body_bytes: int
    files: int
    pixels: int


class Record(BaseModel):
    """A class that the model knows."""

    name: str
    images: int = Field(description="how many images it was learned from")
    learned: str = Field(description="when it was learned first: ISO 8601, UTC")
    updated: str = Field(description="when it was learned last")

    @classmethod
    def of(cls, one: ClassRecord) -> "Record":
        return cls(name=one.name, images=one.images, learned=one.learned, updated=one.updated)


class Step(BaseModel):
    """Something that was done to the model."""

    version: int = Field(description="the version that the step made")
    when: str = Field(description="ISO 8601, UTC")
    did: str = Field(description="learn, forget, rename or merge")
    what: str = Field(description="in words")

    @classmethod
    def of(cls, step: dict[str, Any]) -> "Step":
        did = step["did"]
        return cls(version=step["version"], when=step["when"], did=did, what=WORDS[did](step))


class Classes(BaseModel):
    model: str = Field(description="the model's name: that of its folder or file")
    classes: list[str] = Field(
        description="the classes that were asked for, in the order they were learned"
    )
    records: list[Record] | None = Field(
        description="more about each class, in the same order; null: an exported file does not say"
    )
    total: int = Field(description="how many classes the model knows")
    found: int = Field(description="how many of them have the query in their name")
    teaching: bool = Field(description="whether this server can be taught")
    staged: dict[str, int] = Field(description="images that wait to be learned, by class")
    version: str | None = Field(
        description="the version that the last step made, for undo: its number and the beginning "
        "of its hash; null: nothing is learned yet, or this server cannot be taught"
    )
    last_step: Step | None = Field(description="what undo would take back; null: nothing")
    flip: bool | None = Field(
        description="whether the next lesson learns mirrored images, too, by default: as the last "
        "one did; null: the model's method does not train, or this server cannot be taught"
    )
    limits: Allowed


class StagedCount(BaseModel):
    name: str
    staged: int = Field(description="images of this class that wait to be learned")


class Added(StagedCount):
    skipped: list[str] = Field(
        description="the files that cannot be read and are not staged: a sentence on each"
    )


class LessonState(BaseModel):
    job: int | None = Field(default=None, description="number of the last lesson; null: none yet")
    state: Literal["idle", "running", "done", "failed"] = "idle"
    pictures: dict[str, int] = Field(
        default={}, description="how many images the lesson has, by class"
    )
    phase: str = Field(
        default="", description="what the lesson does now; it has one phase or several"
    )
    waiting_for: str | None = Field(
        default=None,
        description="what must end before it goes on, such as another process that is changing "
        "this model; null: nothing",
    )
    progress: float = Field(
        default=0, description="share of the phase that is done, 0 to 1; 1 after the lesson"
    )
    seconds: float = Field(default=0, description="how long the lesson has taken so far, or took")
    seconds_left: float | None = Field(
        default=None,
        description="how long the phase still takes, estimated; null: too early to tell",
    )
    report: dict[str, Any] | None = Field(
        default=None, description="how well it went, in numbers and in lines"
    )
    error: str | None = None

    @classmethod
    def of(cls, job: Job | None) -> "LessonState":
        if job is None:
            return cls()
        state, progress = job.state, job.progress  # the state first: it is what changes last
        running = state == "running"
        return cls(
            job=job.number,
            state=state,
            pictures=job.images,
            phase=progress.phase,
            waiting_for=progress.waiting_for if running else None,
            progress=1 if state == "done" else progress.fraction,
            seconds=job.seconds,
            seconds_left=progress.seconds_left if running else None,
            report=job.report,
            error=job.error,
        )


class Changed(BaseModel):
    classes: list[str] = Field(
        description=f"the classes that the model knows now, the first {MOST:,} of them"
    )
    total: int = Field(description="how many these are, all in all")


def known(classes: list[str]) -> dict[str, Any]:
    """Return the fields of `Changed`."""
    return {"classes": classes[:MOST], "total": len(classes)}


class Undone(Changed):
    undone: Step = Field(description="the step that was taken back")


class Forgot(Changed):
    name: str
    for_good: bool
    versions: list[int] = Field(
        description="all older versions, which were deleted; empty: not for good"
    )
    remains: str = Field(description="what is left of the class, in words; empty: nothing")


class Renamed(Changed):
    name: str = Field(description="the name of the class from now on")


class History(BaseModel):
    steps: list[Step] = Field(description="the last steps, the oldest of them first")
    total: int = Field(description="how many steps there are, all in all")
    undoable: bool = Field(description="whether the last one can be taken back")

    @classmethod
    def of(cls, versions: list[Version], limit: int) -> "History":
        steps = steps_of(versions)
        shown = [Step.of(step) for step in steps[-limit:]]
        return cls(steps=shown, total=len(steps), undoable=len(versions) > 1)


class Health(BaseModel):
    status: Literal["ok"]
    classes: int
    version: str = Field(description="the version of dafuse")


class Error(BaseModel):
    error: str = Field(description="one sentence: what is wrong and what to do")
    skipped: list[str] | None = Field(
        default=None, description="a sentence on each file; there only where none can be read"
    )


def docs_page(openapi: dict[str, Any]) -> str:
    """The description as a page of HTML."""
    info = openapi["info"]
    sections = [
        _operation(method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}: the API</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/style.css">
</head>
<body>
<header><h1>{escape(info["title"])} <span class="quiet">{escape(info["version"])}</span></h1>
<p>{escape(info["description"])}</p>
<p><a href="/">The page</a> · <a href="/openapi.json">This description as OpenAPI</a></p></header>
<main class="docs">
{"".join(sections)}
</main>
</body>
</html>
"""


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    inputs = "".join(
        f"<dt><code>{escape(one['name'])}</code></dt>"
        f"<dd>{escape(one.get('description', 'in the path'))}</dd>"
        for one in operation.get("parameters", [])
    )
    if "requestBody" in operation:
        inputs += "<dt>body</dt><dd>a form with one or more files</dd>"
    if "security" in operation:
        inputs += "<dt>header</dt><dd><code>Authorization: Bearer TOKEN</code></dd>"
    answers = "".join(
        f"<dt>{escape(status)}</dt><dd>{escape(_described(response))}</dd>"
        for status, response in sorted(operation["responses"].items())
    )
    return (
        f'<section class="card"><h2><code>{method} {escape(path)}</code></h2>'
        + "".join(f"<p>{escape(operation[key])}</p>" for key in SHOWN if key in operation)
        + (f"<h3>Asks for</h3><dl>{inputs}</dl>" if inputs else "")
        + f"<h3>Answers</h3><dl>{answers}</dl>"
        + (f"<pre><code>{escape(_example(method, path, operation))}</code></pre></section>\n")
    )


def _described(response: dict[str, Any]) -> str:
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return f"{response['description']}: {name}" if name else response["description"]


def _example(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = ["curl"]
    if method == "DELETE" or (method == "POST" and "requestBody" not in operation):
        parts.append(f"-X {method}")
    if "security" in operation:
        parts.append('-H "Authorization: Bearer $DAFUSE_TOKEN"')
    if "requestBody" in operation:
        parts.append("-F files=@cat.jpg")
    names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
    needed = [one["name"] for one in operation.get("parameters", []) if one.get("required")]
    query = "&".join(f"{name}={name.upper()}" for name in names if name in needed)
    address = "http://127.0.0.1:8000" + path.replace("{name}", "cat") + (query and f"?{query}")
    if method == "GET" and FILE in operation["responses"]["200"].get("content", {}):
        parts.append("-OJ")
    return " ".join([*parts, f"'{address}'" if query else address])
