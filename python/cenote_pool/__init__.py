"""Spaces of the memory pool: heaps that many processes share.

>>> from cenote_pool import Space
>>> with Space.private(16 << 20) as space, space.session() as session:
...     greeting = session.alloc(100)
...     space.write(greeting, b"hello")
...     space.read(greeting, 5)
b'hello'

A :class:`Space` is used from any thread; a :class:`Session` allocates in it, one for a thread. What fails raises an
:class:`Error`; there is a class for each kind. The modules call ``libcenote_pool.so``; its header, ``cenote_pool.h``,
says what each function does at length.
"""

from ._library import ABI, LibraryNotFound, version
from ._space import CacheStats, Lifetime, Lock, Session, Space, Stats
from ._store import FAILED, MISSING, Borrow, Room, Store
from .address import NULL, Address
from .errors import (
    BugError,
    BusyError,
    CorruptError,
    Error,
    FullError,
    InvalidError,
    IoError,
    LostError,
    MismatchError,
    OutOfBoundsError,
    PoisonedError,
    RevokedError,
    TimedOutError,
)

__all__ = [
    "ABI",
    "FAILED",
    "MISSING",
    "NULL",
    "Address",
    "Borrow",
    "BugError",
    "BusyError",
    "CacheStats",
    "CorruptError",
    "Error",
    "FullError",
    "InvalidError",
    "IoError",
    "LibraryNotFound",
    "Lifetime",
    "Lock",
    "LostError",
    "MismatchError",
    "OutOfBoundsError",
    "PoisonedError",
    "RevokedError",
    "Room",
    "Session",
    "Space",
    "Stats",
    "Store",
    "TimedOutError",
    "version",
]
