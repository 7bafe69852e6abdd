"""A Ray cluster with three nodes on this machine computes the same cells, even if nodes die."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace

import pytest
from tests.runs.logged_target import LoggedTarget
from tests.runs.runs import content, spec

from saddlepoint.runs import ray as ray_executor
from saddlepoint.runs.batches import Batches
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.ray import Ray
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.work import FailedCell

# Without this setting Ray replaces 127.0.0.1 by the outer address of this machine.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Workers would otherwise have a lower priority than all other processes of a busy machine.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
SMALLEST_STORE = 80 * 2**20  # bytes
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'saddlepoint[ray]'")


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings that Ray itself causes when it starts
        cluster = Cluster(
            initialize_head=True,
            connect=False,
            head_node_args={
                "num_cpus": 1,
                "node_ip_address": "127.0.0.1",
                "include_dashboard": False,
                "object_store_memory": SMALLEST_STORE,
            },
        )
        cluster.others = [
            cluster.add_node(
                num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=SMALLEST_STORE
            )
            for _ in range(2)
        ]
        ray.init(
            address=cluster.address,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_three_nodes_give_the_bytes_of_one_process_even_if_two_die(cluster, tmp_path):
    """The nodes have the smallest object store that Ray accepts, and one task per cell."""
    run_spec(spec(), tmp_path / "serial", executor=Serial())

    class RemovesNodes(Ray):
        """Removes one node when the fifth attack cell has arrived, another one later."""

        def run(self, work, spec, cells):
            for k, packed in enumerate(super().run(work, spec, cells)):
                if k in (5, 20) and cluster.others:
                    cluster.remove_node(cluster.others.pop(), allow_graceful=False)
                yield packed

    executor = RemovesNodes(address=cluster.address, batch_seconds=0.0)
    run_spec(spec(), tmp_path / "lost", executor=executor)
    assert cluster.others == []
    assert content(tmp_path / "lost") == content(tmp_path / "serial")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_attacks_and_diagnostics_run_on_ray_workers_only(tmp_path):
    """Without an address, Ray is started on this machine."""
    target = LoggedTarget.write(tmp_path)
    try:
        target.audit(Ray(cpus=min(1.0, (os.cpu_count() or 1) / 2)))  # at least two workers
    finally:
        ray.shutdown()
    assert target.driver not in target.pids_after_the_plan
    assert len(target.pids_after_the_plan) >= 2
    serial = LoggedTarget(tmp_path, out="serial")
    serial.audit(Serial())
    assert content(target.run) == content(serial.run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cells_larger_than_the_object_store_give_the_bytes_of_one_process(tmp_path):
    """Each of two cells has 77 MB of points, and the store holds 80 MB for both workers."""
    target = tmp_path / "large.py"
    target.write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(192, 4)).eval()\n"
        "def images():\n"
        "    x = torch.rand(128, 3, 224, 224, generator=torch.Generator().manual_seed(0))\n"
        "    return x, net()(x).argmax(1)\n"
    )
    large = RunSpec(
        target=f"{target}:net",
        data=DataSpec(name=f"{target}:images", n=128),
        threat=ThreatSpec(eps="0.01"),
        attacks=(AttackSpec(kind="fgsm"),),
        batch_size=128,
        allow_unusual=True,
    )
    run_spec(large, tmp_path / "serial", executor=Serial())
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=SMALLEST_STORE,
            _node_ip_address="127.0.0.1",
        )
        run_spec(large, tmp_path / "ray", executor=Ray(cpus=1, batch_seconds=0.0))
    finally:
        ray.shutdown()
    assert content(tmp_path / "ray") == content(tmp_path / "serial")


class LostError(Exception):
    """Stands for an error of Ray about a lost worker or node."""


class TaskError(Exception):
    """Stands for an error of Ray about an error in a task."""

    cause = None


def lost_ray() -> SimpleNamespace:
    """A Ray whose only node is lost."""

    def get(reference):
        raise LostError("The worker died unexpectedly.\nand more")

    return SimpleNamespace(
        get=get, exceptions=SimpleNamespace(RayError=LostError, RayTaskError=TaskError)
    )


def test_a_cell_that_is_lost_with_the_only_node_has_failed():
    batches = Batches([], 1.0)
    [failed] = ray_executor._results(lost_ray(), "task", [(3, 1)], batches)
    assert isinstance(failed, FailedCell)
    assert failed.cell == (3, 1)
    assert failed.reason == "its Ray worker or node was lost (The worker died unexpectedly.)"
    assert batches.next() == ()


def test_the_cells_of_a_lost_batch_are_computed_again_one_by_one():
    """One of them may have cost the others their worker."""
    batches = Batches([], 1.0)
    assert list(ray_executor._results(lost_ray(), "task", [(3, 1), (4, 1)], batches)) == []
    assert [batches.next(), batches.next(), batches.next()] == [((3, 1),), ((4, 1),), ()]
