"""Processes whose lessons come in small shards; and one that kills itself among them."""

import signal

from dafuse.product import shards
from helpers.processes import signal_at

SIZE, TRIED = 10, 13  # images


def with_small_shards() -> None:
    shards.SHARD, shards.TRIED_ON = SIZE, TRIED


def killed_at_the_fourth_shard() -> None:
    with_small_shards()
    signal_at("dafuse.product.unfinished", "Unfinished._put", 4, signal.SIGKILL)
