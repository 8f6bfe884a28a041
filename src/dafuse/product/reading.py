"""Reading a lesson: which images are learned, which are left out and why, what they add up to.

A lesson of many images is read in shards of fixed size, so that memory stays the same however many
there are. A shard gives a `ReadShard`: sums of its images, and the features of those few that the
method leaves out in turn. It depends on the shard alone, so it may be made anywhere. No torch here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from dafuse.backbones.extractor import Extractor
from dafuse.data.dataset import Item, Skipped
from dafuse.data.decoding import AT_ONCE, in_parts
from dafuse.data.images import UnreadableImage
from dafuse.data.preprocessing import Preprocessing
from dafuse.errors import DafuseError
from dafuse.product.seen import Seen, digest_of
from dafuse.product.version import Version
from dafuse.taught.contract import Arrays, Encode, InShards, Teachable

SUMMED = 512  # images whose features are held until they are added up


@dataclass(frozen=True)
class Shard:
    """Some images of a lesson."""

    number: int
    of: int  # how many there are in all
    rows_N: np.ndarray  # which images of the lesson these are
    images: Sequence[Item]
    labels_N: np.ndarray
    tried_N: np.ndarray  # whether the features of an image are kept apart, so that it can be tried


@dataclass(frozen=True)
class ReadShard:
    """The images of a shard to learn, what they add up to, and counts of those left out."""

    rows_N: np.ndarray  # which images are learned
    labels_N: np.ndarray
    pixels_N: np.ndarray  # numbers in each: height x width x 3
    hashes_N: np.ndarray  # of each, where images are recognised
    tried_N: np.ndarray  # whether its features are below; all others are in the sums
    feats_TF: np.ndarray | None  # None for a method that reads the images itself
    sums: Arrays  # what `InShards.collect` made of the others; nothing if there are none
    classes_K: np.ndarray  # the label of each class of the sums
    skipped: list[Skipped]  # could not be read, or were taught as another class
    unreadable: list[int]  # which images could not be read
    again: int  # images that were taught before, as the same class
    twice: int  # images that are in the lesson already, in the same class
    kept_in: str = ""  # the folder that it was kept in, if it was


class Met(Protocol):
    """Hashes of images of this lesson, with their labels."""

    def find(self, wanted: np.uint64) -> int | None: ...


class _Cut(NamedTuple):
    """The parts of a decoded image that a lesson needs."""

    pixels: int
    digest: bytes  # b"": images are not recognised
    hash: np.uint64
    taught_as: int | None  # the id of the class that it was taught as before
    met_as: int | None  # its label in an earlier shard of this lesson
    square_3SS: np.ndarray | None

    @property
    def is_new(self) -> bool:
        return self.taught_as is None and self.met_as is None


@dataclass(frozen=True)
class Reader:
    """Reader of shards, by a network and with what the model was taught before."""

    names: list[str]  # of each label
    names_of_ids: dict[int, str]  # of the model's classes
    seen: Seen | None  # images that were taught before; None: none is recognised
    encode: Encode | None  # None for a method that computes features itself
    blank: Callable[[], Teachable]  # to sum up features
    looks: Preprocessing
    threads: int

    def read(self, shard: Shard, met: Met, advance: Callable[[], None]) -> ReadShard:
        """Decode each image once; compute features of those to be learned, and add them up.

        Left out are images that were taught before, and those that come twice, here or in what was
        met in other shards.
        """
        sorting = _Sorting(self, shard, _Summing(self.blank))
        for place, one in enumerate(self._each(shard, met)):
            advance()
            sorting.take(place, one)
        return sorting.part()

    def _each(
        self, shard: Shard, met: Met
    ) -> Iterable[tuple[_Cut, np.ndarray | None] | UnreadableImage]:
        encode, seen = self.encode, self.seen

        def cut(pixels_HW3: np.ndarray) -> _Cut:
            if seen is None:
                one = _Cut(pixels_HW3.size, b"", np.uint64(0), None, None, None)
            else:
                digest = digest_of(pixels_HW3)
                key = seen.hash_of(digest)
                known = seen.class_of(digest), met.find(key)
                one = _Cut(pixels_HW3.size, digest, key, *known, None)
            if encode is None or not one.is_new:
                return one
            return one._replace(square_3SS=self.looks.centre_square(pixels_HW3))

        came: set[bytes] = set()

        def compute(cuts: list[_Cut]) -> list[tuple[_Cut, np.ndarray | None]]:
            fresh = [one.is_new and _first(one.digest, came) for one in cuts]
            squares = [
                one.square_3SS
                for one, is_fresh in zip(cuts, fresh, strict=True)
                if is_fresh and one.square_3SS is not None
            ]
            feats = iter(encode(np.stack(squares)) if encode is not None and squares else ())
            return [
                (one, next(feats) if is_fresh and squares else None)
                for one, is_fresh in zip(cuts, fresh, strict=True)
            ]

        return in_parts(shard.images, AT_ONCE, compute, cut, self.threads)


def reader_of(
    version: Version,
    extractor: Extractor,
    blank: Callable[[], Teachable],
    shared: Arrays,
    names: list[str],
    seen: Seen | None,
) -> Reader:
    """Return what reads a lesson of a model of this version; labels have these names."""
    method = blank()
    return Reader(
        names,
        {record.id: record.name for record in version.classes},
        seen,
        None if method.trains else method.encoder(shared),
        blank,
        extractor.preprocessing,
        extractor.threads,
    )


def _first(digest: bytes, came: set[bytes]) -> bool:
    """Tell whether this image comes for the first time, and note that it came."""
    if digest in came:
        return False
    if digest:
        came.add(digest)
    return True


class _Summing:
    """The sums of a shard's images, some added at a time."""

    def __init__(self, blank: Callable[[], Teachable]) -> None:
        self._blank = blank
        self._method: InShards | None = None
        self._classes: list[int] = []  # the label of each class, in the order in which they come
        self._feats: list[np.ndarray] = []
        self._labels: list[int] = []

    def add(self, feats_F: np.ndarray, label: int) -> None:
        if label not in self._classes[-1:]:  # images of a class follow each other
            self._classes.append(label)
        self._feats.append(feats_F)
        self._labels.append(len(self._classes) - 1)
        if len(self._feats) == SUMMED:
            self._add_up()

    def sums(self) -> tuple[Arrays, np.ndarray]:
        """Return the sums, and the label of each of their classes."""
        if self._feats:
            self._add_up()
        sums = {} if self._method is None else self._method.collected()
        return sums, np.array(self._classes, np.int64)

    def _add_up(self) -> None:
        if self._method is None:
            method = self._blank()
            assert isinstance(method, InShards)
            self._method = method
        self._method.collect(np.stack(self._feats), np.array(self._labels))
        self._feats, self._labels = [], []


@dataclass
class _Sorting:
    """Sorted images of a shard: those to learn and, with the reason, those left out."""

    reader: Reader
    shard: Shard
    summing: _Summing
    first_class: dict[bytes, str] = field(default_factory=dict)  # in this shard
    places: list[int] = field(default_factory=list)  # in the shard, of the images to learn
    pixels: list[int] = field(default_factory=list)
    hashes: list[np.uint64] = field(default_factory=list)
    feats: list[np.ndarray] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    again: int = 0
    twice: int = 0

    def take(self, place: int, one: tuple[_Cut, np.ndarray | None] | UnreadableImage) -> None:
        name = self.reader.names[self.shard.labels_N[place]]
        if isinstance(one, UnreadableImage):
            self.unreadable.append(int(self.shard.rows_N[place]))
            self._skip(place, str(one))
            return
        cut, feats_F = one
        before = self._taught_before(cut)
        met = self.first_class.get(cut.digest)
        if cut.met_as is not None:
            met = self.reader.names[cut.met_as]
        if before == name:
            self.again += 1
        elif before is not None:
            self._skip(place, _taught_otherwise(before, name))
        elif met == name:
            self.twice += 1
        elif met is not None:
            self._skip(place, _in_both(met, name))
        else:
            self._learn(place, name, cut, feats_F)

    def part(self) -> ReadShard:
        sums, classes_K = self.summing.sums()
        places = np.array(self.places, np.int64)
        return ReadShard(
            rows_N=self.shard.rows_N[places],
            labels_N=self.shard.labels_N[places],
            pixels_N=np.array(self.pixels, np.int64),
            hashes_N=np.array(self.hashes, np.uint64),
            tried_N=self.shard.tried_N[places],
            feats_TF=np.stack(self.feats) if self.feats else None,
            sums=sums,
            classes_K=classes_K,
            skipped=self.skipped,
            unreadable=self.unreadable,
            again=self.again,
            twice=self.twice,
        )

    def _taught_before(self, cut: _Cut) -> str | None:
        """Return the name of the class that an image was taught as."""
        if cut.taught_as is not None and cut.taught_as not in self.reader.names_of_ids:
            raise DafuseError(
                f"the model has hashes of images of class {cut.taught_as}, and no such class: "
                "restore it from a copy, or teach with --no-recognise"
            )
        return None if cut.taught_as is None else self.reader.names_of_ids[cut.taught_as]

    def _learn(self, place: int, name: str, cut: _Cut, feats_F: np.ndarray | None) -> None:
        if cut.digest:
            self.first_class[cut.digest] = name
            self.hashes.append(cut.hash)
        self.places.append(place)
        self.pixels.append(cut.pixels)
        if feats_F is not None and self.shard.tried_N[place]:
            self.feats.append(feats_F)
        elif feats_F is not None:
            self.summing.add(feats_F, int(self.shard.labels_N[place]))

    def _skip(self, place: int, why: str) -> None:
        image = self.shard.images[place]
        what = f"image {self.shard.rows_N[place]}" if isinstance(image, np.ndarray) else str(image)
        self.skipped.append(Skipped(what, why))


def _taught_otherwise(before: str, now: str) -> str:
    return (
        f"taught as {before} before, so not as {now} now; to correct that, rename {before}, or "
        f"forget it and teach its images again; --no-recognise teaches them as {now}, too"
    )


def _in_both(first: str, now: str) -> str:
    return f"the same image is in {first}, so it is not taught as {now}; keep it in one of them"
