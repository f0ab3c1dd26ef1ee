"""Fusion attention of documents: its calls, which the conformance kit does not see. Operators are stand-ins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ascend_kit import operators
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle
from pretrain.conformance.example_calls import example_call, example_documents
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import Documents
from pretrain_ascend.kernels import document_attention
from pretrain_ascend.kernels.document_attention import DocumentAttention


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """The calls that were made."""
    monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operators.call)
    operators.calls.clear()
    return operators.calls


def asked(**changed):
    return examples.attention(torch.float32, Mask.DOCUMENTS, **{"length": 40, "batch": 1} | changed)


def agree(request, documents):
    given = example_call(request, 0).inputs
    constants = {"mask": documents}
    cpu = torch.device("cpu")
    assert_agrees(DocumentAttention(request), oracle(request), given, cpu, constants=constants, floor=1.0)


def documents_of(queries, keys):
    return Documents.of(torch.tensor([queries, keys], dtype=torch.int32))


def test_all_samples_are_one_call_with_the_ends_of_their_documents(stand_ins):
    agree(asked(batch=2), documents_of([0, 30, 30, 40, 80], [0, 30, 30, 40, 80]))
    ((_, given),) = stand_ins
    assert (given["input_layout"], given["sparse_mode"], given["keep_prob"]) == ("TND", 3, 1.0)
    assert given["query"].shape == (80, 4, 16)
    assert given["actual_seq_qlen"] == given["actual_seq_kvlen"] == [30, 40, 80]


def test_a_window_is_a_band_of_each_document(stand_ins):
    agree(asked(window=9), documents_of([0, 30, 40], [0, 30, 40]))
    assert [(given["sparse_mode"], given["pre_tockens"], given["next_tockens"]) for _, given in stand_ins] == [
        (4, 8, 0)
    ]


@pytest.mark.parametrize(("batch", "copies"), [(1, False), (2, True)])
def test_keys_without_queries_are_left_out(stand_ins, batch, copies):
    """Those of one sample lie before the others, so that nothing is copied."""
    request = asked(batch=batch, keys=100)
    agree(request, example_documents(batch, 40, 100, [39, 40, 20]))
    ((_, given),) = stand_ins
    assert given["actual_seq_qlen"] == [20, 40, 60, 80][: 2 * batch]
    assert given["actual_seq_kvlen"] == [40, 60, 100, 120][: 2 * batch]
    assert given["key"].shape[0] == 60 * batch
    assert (given["key"]._base is None) is copies


def test_more_documents_than_a_call_takes_are_several_calls(stand_ins, monkeypatch):
    monkeypatch.setattr(document_attention, "MOST", 3)
    ends = [0, 1, 7, 7, 20, 24, 40, 41, 60, 80]
    agree(asked(batch=2), documents_of(ends, ends))
    assert [given["actual_seq_qlen"] for _, given in stand_ins] == [[1, 7, 20], [4, 20, 21], [19, 39]]


def test_dropout_is_left_out_of_the_call_outside_training(stand_ins):
    request = asked(dropout=0.25)
    mask, given = example_documents(1, 40, 40), example_call(request, 0).inputs
    for training in (True, False):
        DocumentAttention(request)(*given.values(), mask, training=training)
    assert [given["keep_prob"] for _, given in stand_ins] == [0.75, 1.0]


def test_a_mask_of_another_kind_is_an_error():
    given = example_call(replace(asked(), mask=Mask.CAUSAL), 0).inputs
    with pytest.raises(ValueError, match="mask 'documents' was called with NoneType; needs Documents"):
        DocumentAttention(asked())(*given.values())
