"""The methods of closed form that are taught by torch: what each keeps, and what stays of a class.

All that they do is in `taught.sums` and in the methods themselves.
"""

from typing import Any, ClassVar

from dafuse.methods.anacp import AnaCP
from dafuse.methods.klda import KLDA
from dafuse.methods.layup import LayUP
from dafuse.methods.lift import LIFT
from dafuse.methods.ranpac import RanPAC
from dafuse.taught.sums import TaughtSums

# random ones, where benchmark runs have 5,000 or 10,000: those take 50 to 400 MB in every version
COLUMNS = 2000
ADAPTER = {"shared/modules/": "the adapter, trained in the first lesson; one for all classes"}
GRAM = {
    "class/moments": "the sum of the features of its images",
    "shared/gram": "second moments of features, summed over the images of all classes",
    "shared/count": "how many images are in these sums",
    "predict/": "the weights of the classes, which follow from the sums",
}
SCATTER = {
    "class/": "how many images, and the mean of their features",
    "shared/": "the scatter about the class means, summed over the images of all classes",
}


class TaughtRanPAC(TaughtSums):
    name: ClassVar[str] = "ranpac"
    made_of = RanPAC
    tunes: ClassVar[str] = "first"
    in_lessons: ClassVar[dict[str, Any]] = {"projection": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("moments",)
    kept: ClassVar[dict[str, str]] = {**ADAPTER, **GRAM}
    remains: ClassVar[str] = (
        "their images stay among those of the second moments of all classes, and among those that "
        "the adapter was trained with, if they were in the first lesson"
    )


class TaughtLayUP(TaughtSums):
    name: ClassVar[str] = "layup"
    made_of = LayUP
    records: ClassVar[tuple[str, ...]] = ("moments",)
    draws: ClassVar[bool] = False
    kept: ClassVar[dict[str, str]] = {**ADAPTER, **GRAM}
    remains: ClassVar[str] = (
        "their images stay among those of the second moments of all classes, and among those that "
        "an adapter was trained with, if there is one and they were in the first lesson"
    )


class TaughtKLDA(TaughtSums):
    name: ClassVar[str] = "klda"
    made_of = KLDA
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums.counts", "sums.means")
    weights: ClassVar[str] = "weights.values"
    remains: ClassVar[str] = "their images stay among those of the scatter of all classes"
    kept: ClassVar[dict[str, str]] = {
        **SCATTER,
        "predict/chosen": "the kind of classifier, its penalty, its temperature",
        "predict/": "the weights of the classes, which follow from the sums",
    }


class TaughtAnaCP(TaughtSums):
    name: ClassVar[str] = "anacp"
    made_of = AnaCP
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums*.counts", "sums*.means")
    leaves_out: ClassVar[bool] = False
    remains: ClassVar[str] = (
        "their images stay among those of the scatter of all classes, and among those that an "
        "adapter was trained with, if there is one and they were in the first lesson"
    )
    kept: ClassVar[dict[str, str]] = {
        **ADAPTER,
        **SCATTER,
        "predict/targets": "what features of each class are projected to",
        "predict/onto": "the projections, which follow from the sums",
        "predict/": "the weights of the classes, which follow from the sums",
    }


class TunedLift(TaughtSums):
    """`lift` with adapters; without them it is taught by numpy (`taught.lift`)."""

    name: ClassVar[str] = "lift"
    made_of = LIFT
    in_lessons: ClassVar[dict[str, Any]] = {"keep": "classwise", "rank": 16}
    records: ClassVar[tuple[str, ...]] = ("sums.*",)
    weights: ClassVar[str] = "weights.values"
    draws: ClassVar[bool] = False
    remains: ClassVar[str] = (
        "an adapter stays as it was trained, with their images among others, if they were in a "
        "lesson that trained one"
    )
    kept: ClassVar[dict[str, str]] = {
        "shared/modules/": "the adapter, or the mean of those trained; one for all classes",
        "class/sums.counts": "how many images",
        "class/sums.means": "the mean of their features",
        "class/sums.directions": "the directions in which their features vary most",
        "class/sums.rest": "how much each feature varies beside that",
        "predict/chosen": "the kind of classifier, its penalty, its temperature",
        "predict/": "the weights of the classes, which follow from all records",
    }
