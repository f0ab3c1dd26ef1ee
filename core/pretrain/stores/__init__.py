"""Object stores, reached through fsspec: addresses, single objects, and copies of them on this node."""
