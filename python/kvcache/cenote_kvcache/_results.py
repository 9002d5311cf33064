"""What the store's result for a key means."""

from __future__ import annotations


def is_stored(result: int) -> bool:
    """Of ``put``: it is there now, or was before (objects are immutable)."""
    return result >= 0


def is_found(result: int) -> bool:
    """Of ``exists`` and ``remove``."""
    return result > 0
