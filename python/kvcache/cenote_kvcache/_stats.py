"""What a store says of itself, as numbers."""

from __future__ import annotations

from typing import Dict

from cenote_pool import Store

#: What the store's metrics begin with.
PREFIX = "cenote_store_"


def stats(store: Store) -> Dict[str, int]:
    """The store's metrics by name: ``hits_total``, ``misses_total``, ``puts_total``, ``evictions_total``, ``items``,
    ``used_bytes`` and the others. Of all processes that use the store, and of all tenants together."""
    lines = (line.split(" ") for line in store.metrics().splitlines() if line.startswith(PREFIX))
    return {name[len(PREFIX) :]: int(value) for name, value in lines if "{" not in name}
