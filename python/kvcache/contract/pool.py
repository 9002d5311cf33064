"""Where a contract test finds its wheels, and its store."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict

_HERE = tempfile.TemporaryDirectory(prefix="cenote-kvcache-")


def wheels() -> str:
    """``CENOTE_WHEELS`` keeps what was fetched for the next run."""
    place = os.environ.get("CENOTE_WHEELS") or os.path.join(_HERE.name, "wheels")
    os.makedirs(place, exist_ok=True)
    return place


def options(name: str) -> Dict[str, Any]:
    """A store of its own."""
    return {"path": os.path.join(_HERE.name, name), "size": 256 << 20}
