"""Ray clusters of several nodes on this machine, which listen on the loopback interface."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from helpers.places import ROOT

LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the machine's address
# a node that was killed is noticed in seconds, not in a quarter of a minute
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}


@contextmanager
def ray_cluster(cpus: list[int]) -> Iterator[Any]:
    """A cluster with a head and other nodes, of so many CPUs each; it has `address`, `add_node`."""
    import ray
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT / "tests")  # nodes open what tests send
    started = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cpus[0],
            "node_ip_address": LOOPBACK,
            "include_dashboard": False,
            "_system_config": SOON,
        },
    )
    try:
        for count in cpus[1:]:
            started.add_node(num_cpus=count, node_ip_address=LOOPBACK)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        os.environ.clear()
        os.environ.update(before)
