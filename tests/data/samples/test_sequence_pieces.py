"""Pieces of a sequence: together they are the whole, and each sees what the whole lets it see."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.conformance.compared_part import mask_of_documents
from pretrain.data.samples.sequence_pieces import ContextRank, document_ends
from pretrain.plugins.signatures import Documents

EOD = 7
sizes = st.integers(1, 4)
texts = st.integers(1, 3).flatmap(
    lambda samples: st.lists(
        st.lists(st.sampled_from([1, 2, EOD]), min_size=24, max_size=24), min_size=samples, max_size=samples
    )
)
"""Up to three samples of 24 tokens, a third of which end a document."""


def whole(tokens):
    ends = document_ends(tokens, EOD)
    return ends, mask_of_documents(Documents.of(torch.stack((ends, ends))), len(tokens))


@given(texts, st.sampled_from([1, 2, 3, 4]))
def test_queries_of_a_piece_see_their_document_and_nothing_else(text, size):
    tokens = torch.tensor(text)
    ends, expected = whole(tokens)
    for rank in range(size):
        context = ContextRank(rank, size)
        part = context.part({"tokens": tokens, "loss_mask": torch.ones(tokens.shape)}, ends)
        length = 24 // (2 * size) if size > 1 else 24
        for piece, each in zip(context.pieces, part["documents"], strict=True):
            documents = Documents.of(each)
            seen = mask_of_documents(documents, len(tokens))
            end = (piece + 1) * length
            begin = end - seen.shape[-1]
            rows = expected[:, :, piece * length : end]
            assert torch.equal(seen, rows[..., begin:end])
            assert rows[..., :begin].all()  # keys that are left out are of other documents
            assert all(k >= q for q, k in zip(documents.queries, documents.keys, strict=True))


@given(sizes)
def test_all_ranks_together_have_every_position_once(size):
    positions = torch.arange(24)[None]
    own = torch.cat([ContextRank(rank, size).own(positions, 1) for rank in range(size)], dim=1)
    assert sorted(own[0].tolist()) == list(range(24))


@given(st.sampled_from([2, 3, 4]))
def test_ranks_have_as_many_causal_keys(size):
    positions = torch.arange(24)[None]
    seen = {int((ContextRank(rank, size).own(positions, 1) + 1).sum()) for rank in range(size)}
    assert len(seen) == 1


def test_the_part_counts_the_tokens_of_the_whole():
    mask = (torch.arange(16).view(2, 8) % 3 == 0).float()
    parts = [
        ContextRank(rank, 2).part({"tokens": torch.zeros(2, 8).long(), "loss_mask": mask}, None) for rank in range(2)
    ]
    assert [part["num_tokens"].item() for part in parts] == [mask.sum().item()] * 2
    assert sum(part["loss_mask"].sum().item() for part in parts) == mask.sum().item()
