"""Images that arrive: held in memory only, and checked before they are decoded.

The multipart parser is python-multipart's, because Starlette's own reading of forms writes files
of more than a megabyte to the disk.
"""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from PIL import Image, UnidentifiedImageError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from dafuse.data.formats import most_pixels, why_unknown
from dafuse.data.images import UnreadableImage, opened
from dafuse.product.server.security import Limits, Memory, Refusal

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PATIENCE = 60.0  # seconds that a body may be behind one that comes at the slowest rate
SLOWEST = 16 * 2**10  # bytes a second
LONGEST_NAME = 100  # characters of a file's name that are repeated to whoever sent it
# how files begin that their plug-in decodes as soon as they are opened, whatever their size
JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
Found = TypeVar("Found")
# it logs forms that are wrong; the answer says so to whoever sent them, and that is enough
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Upload:
    """A file that is an image by its header, within the limits, and not decoded yet."""

    name: str
    data: bytes
    pixels: int


@dataclass(frozen=True)
class NoImage:
    """A file that cannot be looked at, and why."""

    name: str
    sentence: str
    status: int = 422  # of the answer, where this is the only file


@dataclass(frozen=True)
class Sent:
    """The files of a request, in their order."""

    files: Sequence[Upload | NoImage]

    @property
    def images(self) -> list[Upload]:
        return [file for file in self.files if isinstance(file, Upload)]

    def placed(self, found: Iterable[Found | UnreadableImage]) -> list[Found | NoImage]:
        """Return an answer for each file: what was found of an image, or that it is none.

        A request without any image that could be read is refused.
        """
        rest = iter(found)
        placed: list[Found | NoImage] = []
        for file in self.files:
            one = file if isinstance(file, NoImage) else next(rest)
            placed.append(_unread(file.name, one) if isinstance(one, UnreadableImage) else one)
        bad = [one for one in placed if isinstance(one, NoImage)]
        if len(bad) == len(placed):
            status = bad[0].status if len(bad) == 1 else 422
            raise Refusal(status, bad[0].sentence, [one.sentence for one in bad])
        return placed


def _unread(name: str, why: object) -> NoImage:
    return NoImage(name, f"{name} cannot be read: {why}")


@asynccontextmanager
async def uploads(request: Request, limits: Limits, memory: Memory) -> AsyncIterator[Sent]:
    """The files of a multipart request, held while the block lasts; refuse too much."""
    with memory.share() as take:
        try:
            async with asyncio.timeout(PATIENCE) as patience:
                chunks = _chunks(request, limits, take, patience)
                files = await _files(request, chunks, limits.files)
        except TimeoutError:
            slow = f"the request arrived too slowly: at less than {SLOWEST // 2**10} KB a second"
            raise Refusal(408, slow) from None
        except ClientDisconnect:
            raise Refusal(400, "the request broke off") from None
        yield Sent(await asyncio.to_thread(_checked, files, limits.pixels))


async def _chunks(
    request: Request, limits: Limits, take: Callable[[int], None], patience: asyncio.Timeout
) -> AsyncIterator[bytes]:
    """The body, piece by piece; refuse one that is too large, by its header or as it comes.

    Each piece that arrives gives the rest more time, so that large files may come over a slow
    line; there is never more time left than at the start.
    """
    too_large = Refusal(413, f"the request has more than the {limits.body_mb:g} MB that it may")
    length, clock = 0, asyncio.get_running_loop().time
    if _declared(request) > limits.body:
        patience.reschedule(None)  # `read_away` has its own time limit
        await read_away(request, limits)
        raise too_large
    async for chunk in request.stream():
        length += len(chunk)
        earned = (patience.when() or 0) + len(chunk) / SLOWEST
        patience.reschedule(min(earned, clock() + PATIENCE))
        if length > limits.body:
            patience.reschedule(None)
            await read_away(request, limits)
            raise too_large
        take(len(chunk))
        yield chunk


def _declared(request: Request) -> int:
    declared = request.headers.get("content-length", "0")
    return int(declared) if declared.isdecimal() else 0


async def read_away(request: Request, limits: Limits) -> None:
    """Let a client that is refused finish sending, within reason, so that it hears why."""
    left = limits.body
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect):
        return


async def _files(request: Request, chunks: AsyncIterator[bytes], most: int) -> "list[_Part]":
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise Refusal(415, "send images as the files of a form (multipart/form-data)")
    form = _Form(most)
    with _well_formed():
        parser = MultipartParser(options[b"boundary"], form.callbacks())
    async for chunk in chunks:
        with _well_formed():
            parser.write(chunk)
    with _well_formed():
        parser.finalize()
    if not form.files:
        raise Refusal(400, "there is no file in the request")
    return form.files


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (FormParserError, UnicodeError, ValueError, IndexError):
        raise Refusal(400, "the form is cut off or damaged") from None


class _Part:
    """A field of a form."""

    def __init__(self) -> None:
        self.name: str | None = None  # that of its file; None: it has none and is ignored
        self.data = bytearray()

    def taken(self) -> bytes:
        """Hand the file over and let go of it: it is held once, as it is counted."""
        data, self.data = bytes(self.data), bytearray()
        return data


class _Form:
    """The files of a form, collected by what the parser calls."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.files: list[_Part] = []
        self._part = _Part()
        self._field, self._value = b"", b""

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_part_data": self._on_data,
        }

    def _begin(self) -> None:
        self._part = _Part()

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            if b"filename" in options:
                if len(self.files) == self.most:
                    raise Refusal(413, f"a request may have at most {self.most} files")
                self._part.name = options[b"filename"].decode("utf-8", "replace")[:LONGEST_NAME]
                self.files.append(self._part)
        self._field, self._value = b"", b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.name is not None:
            self._part.data += data[start:end]


def _checked(files: list[_Part], most: int) -> list[Upload | NoImage]:
    return [
        _upload(file.name or f"file {number}", file.taken(), most)
        for number, file in enumerate(files, start=1)
    ]


def _upload(name: str, data: bytes, most: int) -> Upload | NoImage:
    """Look at the header only: a small file can hold far more pixels than there is memory."""
    if not data:
        return _unread(name, "the file is empty")
    if data.startswith(JPEG_XL):
        return _unread(name, "the server does not read JPEG XL; save it as JPEG or PNG")
    try:
        with opened(io.BytesIO(data)) as image:
            most, pixels = min(most, most_pixels(image.format)), image.width * image.height
    except Image.DecompressionBombError:
        pixels = most + 1
    except UnidentifiedImageError:
        return _unread(name, why_unknown(data[:12], name))
    except Exception:  # broken headers make Pillow raise almost anything
        return NoImage(name, f"{name} is a damaged image")
    if pixels > most:
        return NoImage(name, f"{name} has more than {most:,} pixels", 413)
    return Upload(name, data, pixels)
