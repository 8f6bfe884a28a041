"""The words for what each method keeps, for the ledger and for people who forget. No torch here."""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """The words for what a method keeps of the images, and for what stays of a dropped class."""

    kept: Mapping[str, str]  # prefixes of array names -> their meaning
    remains: str  # beside the class's record, which goes


_CHOSEN = {"predict/chosen": "the kind of classifier, its penalty, its temperature"}
_WEIGHTS = {"predict/": "the weights of the classes, which follow from the sums"}
_ADAPTER = {"shared/modules/": "the adapter, trained in the first lesson; one for all classes"}
_GRAM = {
    "class/moments": "the sum of the features of its images",
    "shared/gram": "second moments of features, summed over the images of all classes",
    "shared/count": "how many images are in these sums",
}
_SCATTER = {
    "class/": "how many images, and the mean of their features",
    "shared/": "the scatter about the class means, summed over the images of all classes",
}
_RECORD = {
    "counts": "how many images",
    "means": "the mean of their features",
    "directions": "the directions in which their features vary most",
    "rest": "how much each feature varies beside that",
}

LIFT = Words(
    {
        **{f"class/{name}": what for name, what in _RECORD.items()},
        "shared/evidence": "how many leave-one-out answers were right at each penalty",
        "predict/": "the weights of the classes, and how familiar images are: it follows from all "
        "records",
        "derived/": "sums over the records of all classes, which follow from them",
    },
    "three settings that all classes share, which its images helped to find: the temperature of "
    "the probabilities, the threshold of unknown, the count of what each penalty was worth",
)
TUNED_LIFT = Words(
    {
        "shared/modules/": "the adapter, or the mean of those trained; one for all classes",
        **{f"class/sums.{name}": what for name, what in _RECORD.items()},
        **_CHOSEN,
        "predict/": "the weights of the classes, which follow from all records",
    },
    "an adapter stays as it was trained, with their images among others, if they were in a lesson "
    "that trained one",
)
SIMPLECIL = Words(
    {
        "class/counts": "how many images",
        "class/sums": "the sum of their features",
        "predict/": "the prototypes of the classes: their means",
    },
    "two settings that all classes share, which its images helped to find: the temperature of the "
    "probabilities, the threshold of unknown",
)
DAF = Words(
    {
        "shared/modules/global": "the global adapter, which predicts; one for all classes",
        "shared/modules/mean": "the mean of the adapters trained so far, where the next one starts",
        "shared/modules/last": "the adapter trained last, where the next one starts",
        "predict/": "the class weights",
        "class/mean": "the mean of the features of its images",
        "class/factor": "their covariance, as a packed lower-triangular factor",
        "class/deviation": "the std of each feature (beside the directions, where there are some)",
        "class/directions": "the leading directions of their covariance",
    },
    "the adapter stays as it was trained, with their images among others",
)
RANPAC = Words(
    {**_ADAPTER, **_GRAM, **_WEIGHTS},
    "their images stay among those of the second moments of all classes, and among those that the "
    "adapter was trained with, if they were in the first lesson",
)
LAYUP = Words(
    {**_ADAPTER, **_GRAM, **_WEIGHTS},
    "their images stay among those of the second moments of all classes, and among those that an "
    "adapter was trained with, if there is one and they were in the first lesson",
)
KLDA = Words(
    {**_SCATTER, **_CHOSEN, **_WEIGHTS},
    "their images stay among those of the scatter of all classes",
)
ANACP = Words(
    {
        **_ADAPTER,
        **_SCATTER,
        "predict/targets": "the targets to which features of each class are projected",
        "predict/onto": "the projections, which follow from the sums",
        **_WEIGHTS,
    },
    "their images stay among those of the scatter of all classes, and among those that an adapter "
    "was trained with, if there is one and they were in the first lesson",
)
