"""`pretrain.conformance.offers` under the name that it had before contract 1.3."""

import warnings

from pretrain.conformance.offers import *  # noqa: F403

MESSAGE = "import pretrain.conformance.offers: pretrain.testing, its old name, goes with contract 1.4"
warnings.warn(MESSAGE, FutureWarning, stacklevel=2)
