"""What the server answers, as it stands in the OpenAPI description."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class Share(BaseModel):
    name: str
    probability: float


class Predicted(BaseModel):
    file: str
    name: str = Field(description='of the class; "unknown" where the picture is like none')
    probability: float = Field(description="of the most probable class, unknown or not")
    unknown: bool
    familiarity: float = Field(description="how much it is like some class; low: unknown")
    top: list[Share] = Field(description="the most probable classes")


class Predictions(BaseModel):
    predictions: list[Predicted] = Field(description="one for each file, in their order")


class Allowed(BaseModel):
    """What a request may be at most."""

    body_bytes: int
    files: int
    pixels: int


class Classes(BaseModel):
    classes: list[str] = Field(description="that the model knows, in the order they were learned")
    teaching: bool = Field(description="whether this server can be taught")
    staged: dict[str, int] = Field(description="pictures that wait to be learned, by class")
    version: str | None = Field(
        description="of the last step, for undo: its number and the beginning of its hash; null: "
        "nothing is learned, or cannot be here"
    )
    last_step: str | None = Field(description="what undo would take back; null: nothing")
    flip: bool | None = Field(
        description="whether the next lesson is taught mirrored, too, unless it is told: as the "
        "last one was; null: this server cannot be taught"
    )
    limits: Allowed


class StagedCount(BaseModel):
    name: str
    staged: int = Field(description="pictures of this class that wait to be learned")


class Lesson(BaseModel):
    job: int | None = Field(description="number of the last lesson; null: none yet")
    state: Literal["idle", "running", "done", "failed"]
    pictures: dict[str, int] = Field(description="of the lesson, by class")
    phase: str
    waiting_for: str | None = Field(
        description="what must end before it goes on, such as another process that is changing "
        "this model; null: nothing"
    )
    progress: float = Field(description="from 0 to 1")
    seconds: float = Field(description="since it began, or that it took")
    seconds_left: float | None = Field(description="estimated; null: too early to tell")
    report: dict[str, Any] | None = Field(
        description="how well it went, in numbers and lines; of each class of few pictures, "
        "how_sure one can be of it"
    )
    error: str | None


class Undone(BaseModel):
    undone: str = Field(description="the step that was taken back")
    classes: list[str]


class Health(BaseModel):
    status: Literal["ok"]
    classes: int
    version: str = Field(description="of dafuse")


class Error(BaseModel):
    error: str = Field(description="one sentence: what is wrong and what to do")
