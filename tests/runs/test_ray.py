"""The same cells on a Ray cluster of two nodes on this machine, one of which dies."""

from __future__ import annotations

import os
import warnings

import pytest
from tests.runs.runs import content, spec

from saddlepoint.runs.executors import Serial
from saddlepoint.runs.ray import Ray
from saddlepoint.runs.runner import run_spec

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
    "0"  # or Ray would look for 127.0.0.1 at the outer address of this machine
)
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'saddlepoint[ray]'")


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own start-up warnings are not ours to mend
        cluster = Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={
                "num_cpus": 1,
                "node_ip_address": "127.0.0.1",
                "include_dashboard": False,
            },
        )
        cluster.extra = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        ray.init(
            address=cluster.address,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_two_nodes_give_the_bytes_of_one_process_and_a_node_that_dies_takes_no_cell_along(
    cluster, tmp_path
):
    run_spec(spec(), tmp_path / "serial", executor=Serial())

    class Deadly(Ray):
        """Kills a node when the tenth cell has arrived."""

        def run(self, work, spec, cells):
            for k, packed in enumerate(super().run(work, spec, cells)):
                if k == 10:
                    cluster.remove_node(cluster.extra, allow_graceful=False)
                yield packed

    run_spec(spec(), tmp_path / "whole", executor=Ray(address=cluster.address))
    run_spec(spec(), tmp_path / "lost", executor=Deadly(address=cluster.address))
    assert content(tmp_path / "whole") == content(tmp_path / "serial")
    assert content(tmp_path / "lost") == content(tmp_path / "serial")
