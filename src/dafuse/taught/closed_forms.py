"""The closed-form methods that are taught by torch.

Their code is in `taught.sums` and in the methods themselves.
"""

from typing import Any, ClassVar

from dafuse.methods.anacp import AnaCP
from dafuse.methods.klda import KLDA
from dafuse.methods.layup import LayUP
from dafuse.methods.lift import LIFT
from dafuse.methods.ranpac import RanPAC
from dafuse.taught import words
from dafuse.taught.sums import TaughtSums

# random columns; the 5,000 or 10,000 of benchmark runs take 50 to 400 MB in every version
COLUMNS = 2000


class TaughtRanPAC(TaughtSums):
    name: ClassVar[str] = "ranpac"
    made_of = RanPAC
    tunes: ClassVar[str] = "first"
    in_lessons: ClassVar[dict[str, Any]] = {"projection": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("moments",)
    remains: ClassVar[str] = words.RANPAC.remains


class TaughtLayUP(TaughtSums):
    name: ClassVar[str] = "layup"
    made_of = LayUP
    records: ClassVar[tuple[str, ...]] = ("moments",)
    draws: ClassVar[bool] = False
    remains: ClassVar[str] = words.LAYUP.remains


class TaughtKLDA(TaughtSums):
    name: ClassVar[str] = "klda"
    made_of = KLDA
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums.counts", "sums.means")
    weights: ClassVar[str] = "weights.values"
    remains: ClassVar[str] = words.KLDA.remains


class TaughtAnaCP(TaughtSums):
    name: ClassVar[str] = "anacp"
    made_of = AnaCP
    in_lessons: ClassVar[dict[str, Any]] = {"width": COLUMNS}
    records: ClassVar[tuple[str, ...]] = ("sums*.counts", "sums*.means")
    leaves_out: ClassVar[bool] = False
    remains: ClassVar[str] = words.ANACP.remains


class TunedLift(TaughtSums):
    """`lift` with adapters; without adapters, `taught.lift` teaches it by numpy."""

    name: ClassVar[str] = "lift"
    made_of = LIFT
    in_lessons: ClassVar[dict[str, Any]] = {"keep": "classwise", "rank": 16}
    records: ClassVar[tuple[str, ...]] = ("sums.*",)
    weights: ClassVar[str] = "weights.values"
    draws: ClassVar[bool] = False
    remains: ClassVar[str] = words.TUNED_LIFT.remains
