"""Datasets of several ranks: who waits for whom, and where the index cache must be seen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from pretrain.data.needed import samples_needed
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError

COLLECTIVES = {"barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "all_reduce", "reduce", "gather"}
COLLECTIVES |= {"all_gather", "all_gather_object", "all_gather_into_tensor", "gather_object", "scatter", "all_to_all"}
COLLECTIVES |= {"scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "send", "recv", "isend", "irecv"}

pytestmark = pytest.mark.usefixtures("bridged", "forked_python")


def built(recipe):
    from pretrain.data.samples.datasets import build_datasets

    return build_datasets(recipe, load_tokenizer(recipe.tokenizer), samples_needed(recipe, 100))


class WaitingError(Exception):
    """A rank has called for the others."""


class TestOneRankOfTwo:
    """Let this process be one of two ranks, of which the other does not answer."""

    @pytest.fixture(autouse=True)
    def _rank_1(self, monkeypatch):
        def wait(*_, **__):
            raise WaitingError

        assert not distributed.is_initialized()
        for name in COLLECTIVES:
            monkeypatch.setattr(distributed, name, wait)
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda *_: 1)
        monkeypatch.setattr(distributed, "get_world_size", lambda *_: 2)

    @pytest.fixture(params=["one file", "a blend"])
    def recipe(self, request, small_recipe, token_files):
        parts = json.dumps([{"weight": weight, "path": str(token_files)} for weight in (1, 2)])
        blend = ["data.path=null", f"data.blend={parts}"] if request.param == "a blend" else []
        return lambda *overrides: small_recipe(*blend, *overrides)

    @pytest.fixture
    def rank_0(self, monkeypatch):
        """Let rank 0 tell what it finds; return where that has been looked up."""
        from pretrain.data.samples import datasets

        told = []
        monkeypatch.setattr(datasets, "on_rank0", lambda look: told.append(look()) or told[-1])
        return told

    def test_rank_0_looks_at_the_files_for_all(self, recipe):
        with pytest.raises(WaitingError):
            built(recipe("data.index=native"))

    def test_with_the_native_index_a_rank_opens_a_file_when_it_reads_of_it(self, recipe, rank_0, monkeypatch):
        expected = built(recipe("data.index=native")).train[7]
        opened, open_ = [], TokenFile.open
        monkeypatch.setattr(TokenFile, "open", lambda prefix: opened.append(prefix) or open_(prefix))
        monkeypatch.setattr("pretrain.data.samples.datasets.on_rank0", lambda _look: rank_0[0])
        train = built(recipe("data.index=native")).train
        assert (len(train), opened) == (800, [])
        assert train[7]["tokens"].equal(expected["tokens"])
        assert len(opened) == 1

    @pytest.mark.usefixtures("rank_0")
    def test_with_that_of_megatron_it_waits_for_the_index(self, recipe):
        with pytest.raises(WaitingError):
            built(recipe("data.index=megatron"))

    @pytest.mark.usefixtures("rank_0")
    def test_a_cache_that_only_rank_0_sees_is_named(self, recipe, monkeypatch, tmp_path):
        monkeypatch.setattr(distributed, "barrier", lambda *_: None)
        with pytest.raises(DataError) as caught:
            built(recipe(f"data.cache_path={tmp_path}/local"))
        message = str(caught.value)
        assert len(message.splitlines()) == 2
        assert f"rank 0 has written the sample indices to {tmp_path}/local, which this machine cannot see" in message
        assert "data.index: native" in message


@pytest.mark.ranks
def test_two_ranks_get_the_same_samples_from_one_cache(tmp_path, token_files):
    program = Path(__file__).with_name("dataset_rank.py")
    command = [sys.executable, str(program), str(tmp_path / "store"), str(token_files)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(program.parents[2])}
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs[0] == outputs[1]
    (*_, of_one), (*_, of_blend), (*_, of_own_files) = json.loads(outputs[0])
    assert len(of_one) == len(of_blend) == len(of_own_files) == 10
    assert of_one != of_blend != of_own_files  # those read all of the blend's files
