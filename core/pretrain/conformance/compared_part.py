"""Part of a call that is compared with float64: everything, or some tokens, samples, heads and queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pretrain.plugins.requests import AttentionRequest, Mask, SoftmaxRequest
from pretrain.plugins.signatures import Documents

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import Request

    Index = tuple[Any, ...]

LEAST_QUERIES = 3
"""One at the beginning, one in the middle, one at the end."""

EARLY = 16
"""Queries that are judged together: the first one sees a single key, and its gradient is zero."""


class ComparedPart(Protocol):
    """Part of a call."""

    def narrow(self, name: str, x: Any) -> Any:
        """Return the part of an argument, of the output ("output"), or of a gradient of one of them."""

    def widen(self, output: Tensor, part: Tensor) -> Tensor:
        """Return a tensor like the output on the host, with the part's values, and zeros outside of it."""

    def scales(self, name: str) -> list[Index]:
        """Return indices of the part, whose entries are of like size each: errors are compared with the largest one."""


@dataclass(frozen=True, slots=True)
class TokenPart:
    """Every `step`th token of the sequence, of an operation that computes each token by itself."""

    step: int = 1

    def narrow(self, name: str, x: Any) -> Any:
        """See `ComparedPart`; weights and biases stay whole."""
        is_whole = self.step == 1 or name in {"weight", "bias"} or not isinstance(x, torch.Tensor)
        return x if is_whole else x[:: self.step]

    def widen(self, output: Tensor, part: Tensor) -> Tensor:
        """See `ComparedPart`."""
        if self.step == 1:
            return part
        wide = torch.zeros(output.shape, dtype=part.dtype)
        wide[:: self.step] = part
        return wide

    def scales(self, name: str) -> list[Index]:  # noqa: ARG002
        """See `ComparedPart`."""
        return [(...,)]


EVERYTHING = TokenPart()


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Samples, groups of heads that share a key, and queries of an attention or a softmax: independent of others."""

    request: AttentionRequest | SoftmaxRequest  # of the whole call
    samples: Tensor  # numbers of those that are compared, int64 and ascending, like the other ones
    groups: Tensor  # of heads that share a key; of heads where none do
    queries: Tensor
    batch: int  # samples of the whole call
    is_whole: bool

    @classmethod
    def of(
        cls, request: AttentionRequest | SoftmaxRequest, batch: int, most: int, *, all_queries: bool = False
    ) -> AttentionPart:
        """Return everything while it has at most `most` scores, else a part of about so many.

        There is at least one group of one sample. `all_queries` leaves out none of them, since a gradient of a key that
        is given sums over all.
        """
        if isinstance(request, AttentionRequest):
            groups, queries, keys = request.query_groups, request.seq_length, request.most_keys
        else:
            groups, queries, keys = request.heads, request.queries, request.keys
        of_query = request.heads // groups * keys
        if batch * groups * queries * of_query <= most:
            return cls(
                request, torch.arange(batch), torch.arange(groups), torch.arange(queries), batch=batch, is_whole=True
            )
        if all_queries:
            fitting = max(1, most // (queries * of_query))
            kept = min(groups, fitting)
            samples = evenly(batch, max(1, min(batch, fitting // kept)))
            return cls(request, samples, evenly(groups, kept), torch.arange(queries), batch=batch, is_whole=False)
        some, few = spread(batch), spread(groups)
        few_queries = runs(queries, most // (len(some) * len(few) * of_query))
        return cls(request, some, few, few_queries, batch=batch, is_whole=False)

    @property
    def heads(self) -> Tensor:
        """Numbers of the compared heads."""
        shared = self.request.heads // self.request.query_groups if isinstance(self.request, AttentionRequest) else 1
        return _members(self.groups, shared)

    @property
    def request_of_part(self) -> Request:
        """The request of a kernel for this part; causal queries that are not all of them need a mask."""
        changed: dict[str, Any] = {"heads": len(self.heads)}
        if isinstance(self.request, AttentionRequest):
            changed["query_groups"] = len(self.groups)
        if self._needs_mask or self._has_documents:
            changed["mask"] = Mask.ARBITRARY
            changed |= {"window": None, "keys": 0} if isinstance(self.request, AttentionRequest) else {}
        return replace(self.request, **changed)

    def with_mask(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the part's arguments with the mask that its request needs, [1, 1, queries, keys]; True = masked."""
        if not self._needs_mask:
            return given
        queries, keys = self._lengths
        last = self.queries[:, None] + keys - queries
        masked = torch.arange(keys) > last
        if isinstance(self.request, AttentionRequest) and self.request.window is not None:
            masked |= torch.arange(keys) <= last - self.request.window
        return given | {"mask": masked[None, None]}

    def narrow(self, name: str, x: Any) -> Any:
        """See `ComparedPart`; documents become a mask, True where a query of the part sees no key."""
        if self.is_whole:
            return x
        if isinstance(x, Documents) and isinstance(self.request, AttentionRequest):
            x = mask_of_documents(x, self.batch, self.request.window)
        if not isinstance(x, torch.Tensor):
            return x
        return x[tuple(each.to(x.device) if isinstance(each, torch.Tensor) else each for each in self._index(name, x))]

    def widen(self, output: Tensor, part: Tensor) -> Tensor:
        """See `ComparedPart`."""
        if self.is_whole:
            return part
        wide = torch.zeros(output.shape, dtype=part.dtype)
        wide[self._index("output", wide)] = part
        return wide

    def scales(self, name: str) -> list[Index]:
        """See `ComparedPart`: an early query's weights are large, and so is what they make."""
        if isinstance(self.request, SoftmaxRequest):
            return [(slice(None), slice(None), places) for places in octaves(self.queries)]
        keys = torch.arange(self.request.most_keys)
        return [(places,) for places in octaves(keys if name in {"key", "value"} else self.queries)]

    def __str__(self) -> str:
        """Return what is compared in words; "" where that is everything."""
        if self.is_whole:
            return ""
        heads = f"{len(self.heads)} of {self.request.heads} heads"
        return (
            f"{len(self.samples)} of {self.batch} sequences, {heads}, {len(self.queries)} of {self._lengths[0]} queries"
        )

    @property
    def _lengths(self) -> tuple[int, int]:
        request = self.request
        if isinstance(request, AttentionRequest):
            return request.seq_length, request.most_keys
        return request.queries, request.keys

    @property
    def _needs_mask(self) -> bool:
        return self.request.mask is Mask.CAUSAL and len(self.queries) < self._lengths[0]

    @property
    def _has_documents(self) -> bool:
        return self.request.mask is Mask.DOCUMENTS and not self.is_whole

    def _index(self, name: str, x: Tensor) -> Index:
        if name == "mask":  # of one sample or all, of one head or all
            samples, heads = (torch.zeros(1, dtype=torch.int64) for _ in range(2))
            samples = self.samples if x.shape[0] > 1 else samples
            return outer(samples, self.heads if x.shape[1] > 1 else heads, self.queries)
        if isinstance(self.request, SoftmaxRequest):
            return outer(self.samples, self.heads, self.queries)
        if name in {"key", "value"}:
            return slice(None), *outer(self.samples, self.groups)
        if name == "query":
            return outer(self.queries, self.samples, self.heads)
        return outer(self.queries, self.samples, _members(self.heads, x.shape[-1] // self.request.heads))


def mask_of_documents(documents: Documents, batch: int, window: int | None = None) -> Tensor:
    """Return bool [b, 1, queries, keys] on the host, True where a query does not see a key of its document or window.

    Written without a loop over documents, since the reference kernel has one.
    """

    def places(ends: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the document of each place, and how many places its document has from there on, both [b, places]."""
        after = torch.tensor(ends[1:])
        place = torch.arange(ends[-1])
        number = torch.bucketize(place, after, right=True)
        return number.view(batch, -1), (after[number] - place).view(batch, -1)

    of_query, left = (x[:, :, None] for x in places(documents.query_ends_on_host))
    of_key, left_of_key = (x[:, None, :] for x in places(documents.key_ends_on_host))
    masked = (of_query != of_key) | (left_of_key < left)
    if window is not None:
        masked |= left_of_key - left >= window
    return masked.unsqueeze(1)


def evenly(count: int, kept: int) -> Tensor:
    """Return `kept` numbers below `count`, evenly spread, with the first and the last; all if there are fewer."""
    return torch.arange(count) if count <= kept else torch.arange(kept) * (count - 1) // max(kept - 1, 1)


def spread(count: int) -> Tensor:
    """Return the first, a middle and the last of so many; odd and even ones are among them where there are two."""
    middle = count // 2 | count % 2
    return torch.tensor(sorted({0, min(middle, count - 1), count - 1}))


def runs(count: int, room: int) -> Tensor:
    """Return about `room` numbers below `count`: neighbours at the beginning, in the middle and at the end.

    The beginning is number 1: query 0 sees one key alone, so that nothing can be said of its gradient.
    """
    length = max(LEAST_QUERIES, room) // 3
    if 3 * length >= count:
        return torch.arange(count)
    starts = 1, (count - length) // 2, count - length
    return torch.tensor(sorted({start + each for start in starts for each in range(length)}))


def octaves(positions: Tensor) -> tuple[Tensor, ...]:
    """Return the places of the positions below 16, from 16 to 31, from 32 to 63, and so on; empty ones are left out.

    Entries of one group are of like size: a late query's weights are small, and an error in them would be lost beside
    the first queries'.
    """
    number = positions.clamp(min=EARLY - 1).double().log2().floor()
    return tuple((number == each).nonzero().flatten() for each in sorted(set(number.tolist())))


def outer(*places: Tensor) -> tuple[Tensor, ...]:
    """Return an index that takes these places of neighbouring dimensions, each with all of the others."""
    count = len(places)
    return tuple(place.view([-1 if at == number else 1 for at in range(count)]) for number, place in enumerate(places))


def _members(groups: Tensor, size: int) -> Tensor:
    """Return the numbers of all members of the groups: heads, or columns of heads."""
    return (groups[:, None] * size + torch.arange(size)).flatten()
