"""The conformance kit against the abacus, as a file of its author's: `pytest tests/abacus/conformance.py`."""

from pretrain.conformance.offers import TestOffers
from pretrain.conformance.suite import *  # noqa: F403
from pretrain.conformance.training import TestTraining as OfTheKit

__all__ = ["TestOffers"]

BACKEND = "abacus"


class TestTraining(OfTheKit):
    tolerance = 2e-7  # the same operators on the same bytes; only the norm is its own
