"""How an adapter finds its store: the same options for each of the three."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, Optional, Tuple

from cenote_pool import Store


@dataclass(frozen=True)
class StoreOptions:
    """Which store, and how it is reached. What is ``None`` is taken from the environment, as ``Store.connect`` does."""

    #: The store's name in the pool.
    store: str = "kvcache"
    #: ``HOST:PORT`` of the pool's manager; several with commas in between.
    manager: Optional[str] = None
    tenant: Optional[str] = None
    secret: Optional[str] = None
    #: The pod of this machine.
    pod: Optional[str] = None
    #: A file instead of a pool, which this process keeps: for one engine, and for tests.
    path: Optional[str] = None
    #: Its bytes, if it is made.
    size: int = 1 << 30
    #: Bytes that the store may take before it evicts; 0: all that the space has.
    bound: int = 0
    #: Threads that copy; 0: as many as the store thinks right.
    threads: int = 0

    @classmethod
    def split(cls, options: Dict[str, Any]) -> Tuple["StoreOptions", Dict[str, Any]]:
        """The options of the store, and what is left of ``options``."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        return cls(**own), {name: value for name, value in options.items() if name not in names}


def connect(options: StoreOptions) -> Store:
    """The store.

    Raises: what ``Store.connect`` and ``Store.open`` raise.
    """
    how: Dict[str, Any] = {"bound": options.bound, "threads": options.threads}
    if options.path is not None:
        return Store.open(options.path, size=options.size, **how)
    whose = {"manager": options.manager, "tenant": options.tenant, "secret": options.secret, "pod": options.pod}
    return Store.connect(options.store, **whose, **how)


def no_more(options: Dict[str, Any]) -> None:
    """Refuses options that have no meaning here: a name with a mistake in it would otherwise be a default.

    Raises: ``ValueError`` with their names.
    """
    if options:
        raise ValueError(f"unknown options: {', '.join(sorted(options))}")
