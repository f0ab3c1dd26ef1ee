"""Processes that GPT-NeoX's own settings start, with the line that says so."""

from __future__ import annotations

import pytest
import yaml

from pretrain.tools.migrate.sources.yaml_files import read_neox


@pytest.fixture
def launch_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def one(settings):
        path = tmp_path / "x.yml"
        path.write_text("num-layers: 2\n" + yaml.safe_dump(settings, sort_keys=False))
        return read_neox([path.relative_to(tmp_path)]).launch

    return one


@pytest.mark.parametrize(
    ("stated", "nproc", "nnodes", "hostfile", "key"),
    [
        ({"num_gpus": 4, "num_nodes": 2}, 4, 2, "", "num_gpus"),
        ({"global_num_gpus": 8, "num_nodes": 2, "hostfile": "hosts"}, 4, 2, "hosts", "global_num_gpus"),
        ({"global_num_gpus": 8, "num_gpus": 4}, 4, 2, "", "global_num_gpus"),
        ({"num_gpus": 8}, None, None, "", "num_gpus"),  # of each node
        ({"hostfile": "hosts", "num_nodes": -1}, None, None, "hosts", "hostfile"),
    ],
)
def test_processes_are_those_that_the_settings_start(launch_of, stated, nproc, nnodes, hostfile, key):
    launch = launch_of(stated)
    assert (launch.nproc, launch.nnodes, launch.hostfile) == (nproc, nnodes, hostfile)
    assert str(launch.place) == f"x.yml:{list(stated).index(key) + 2}"


def test_settings_without_processes_have_no_launch(launch_of):
    assert launch_of({"num_gpus": 0, "num_nodes": -1, "hostfile": None}) is None
