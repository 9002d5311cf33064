"""What calls raise: a class for each kind, by what a caller can do about it."""

from __future__ import annotations

import builtins
from typing import Dict, Type


class Error(Exception):
    """What the pool answers when it does not do what was asked."""

    #: The library's number for the kind.
    status = 0


class IoError(Error):
    """A file or device failed."""

    status = 1


class FullError(Error):
    """No more room; the message says where."""

    status = 2


class CorruptError(Error):
    """Bytes do not hold what they should; the message says which."""

    status = 3


class MismatchError(Error):
    """A file or setting that does not fit; the message names the field."""

    status = 4


class PoisonedError(Error):
    """An earlier failure made it unsafe to go on; the message says what to do."""

    status = 5


class InvalidError(Error, ValueError):
    """A request that makes no sense: no object is there, it was freed, the space was closed, ..."""

    status = 6


class BusyError(Error):
    """Another process has what is needed."""

    status = 7


class TimedOutError(Error, builtins.TimeoutError):
    """No answer in time: it was done once, or not at all."""

    status = 8


class RevokedError(Error):
    """What was granted was taken back, the session was ended, or this process was fenced."""

    status = 9


class OutOfBoundsError(Error, IndexError):
    """The object ends before; the message says where."""

    status = 10


class LostError(Error):
    """A peer is gone, and what it had."""

    status = 11


class BugError(Error):
    """A bug in the library, which it noticed: close what you use."""

    status = 12


BY_STATUS: Dict[int, Type[Error]] = {
    kind.status: kind
    for kind in (
        IoError,
        FullError,
        CorruptError,
        MismatchError,
        PoisonedError,
        InvalidError,
        BusyError,
        TimedOutError,
        RevokedError,
        OutOfBoundsError,
        LostError,
        BugError,
    )
}


def of(status: int, message: str) -> Error:
    """The exception for what a call answered."""
    return BY_STATUS.get(status, Error)(message)
