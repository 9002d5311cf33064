"""Spaces and sessions."""

from __future__ import annotations

import enum
import math
import os
import threading
from ctypes import addressof, byref, c_char_p, c_uint64, c_void_p, create_string_buffer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, List, NamedTuple, Optional, Tuple, Type, Union

from . import _memory, errors
from ._library import CCacheStats, CError, CHeld, COp, COptions, CPoolOptions, CStats, Problem, quick, waiting
from .address import Address

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes from which on a copy lets other threads run.
LONG = 64 << 10

#: As long as a lock's owners live.
FOREVER = (1 << 64) - 1


class _Report(threading.local):
    """Where calls of a thread tell what went wrong."""

    def __init__(self) -> None:
        self.error = CError()
        self.at = byref(self.error)


_report = _Report()


def _failed(status: int) -> errors.Error:
    return errors.of(status, bytes(_report.error.message).decode("utf-8", "replace"))


def _no_address(number: int) -> errors.Error:
    return errors.InvalidError(f"{number:#x} has more than 64 bits: it is no address")


def _checked(address: int) -> int:
    """ctypes takes the lower 64 bits of any number, without a word."""
    if address >> 64:
        raise _no_address(address)
    return address


class _Handle:
    """What the library gave. Each call holds a reference to it, so that it is closed when the last one is done: a
    thread may close what others use."""

    __slots__ = ("pointer", "_close", "_failures")

    def __init__(self, pointer: c_void_p, close: Any) -> None:
        self.pointer = pointer.value
        self._close = close
        self._failures: List[errors.Error] = []

    def __del__(self) -> None:
        error = CError()
        if self._close(self.pointer, byref(error)):
            self._failures.append(errors.of(error.status, bytes(error.message).decode("utf-8", "replace")))


class _Open:
    """What is open until it is closed: a context manager."""

    _what = "it"
    _handle: Optional[_Handle]

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None:
            raise errors.InvalidError(f"{self._what} was closed")
        return handle

    def _call(self, function: Any, *arguments: Any) -> None:
        """Calls a function with the handle first."""
        handle = self._open()
        status = function(handle.pointer, *arguments, _report.at)
        # Or it would stay open for as long as the exception, which refers to this frame.
        del handle
        if status:
            raise _failed(status)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._handle is None

    def close(self) -> None:
        """Closes it. Calls of other threads that have begun go on, and the last one closes it. Closing again does
        nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        failures = handle._failures
        del handle
        if failures:
            raise failures[0]

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Lifetime(enum.IntEnum):
    """How long an object stays."""

    #: Until it is freed, whatever becomes of the session that allocated it.
    SPACE = 0
    #: Until it is freed, or the session that allocated it is closed or its process dies.
    SESSION = 1


class Stats(NamedTuple):
    """What a space is used for at a moment. Extents have 2 MiB: each is free, cut into objects (a slab), of a larger
    object (in a run), retired or broken."""

    parts: int
    extents: int
    free: int
    slabs: int
    in_runs: int
    retired: int
    broken: int
    #: Objects that are allocated, and bytes that they can hold.
    objects: int
    bytes: int


class CacheStats(NamedTuple):
    """What was read and written under locks of what lies in other pods, by this process."""

    #: Reads that needed no trip, and those that another pod was asked for.
    hits: int
    misses: int
    #: What stays in the process.
    pages: int
    bytes: int
    #: Writes that were collected, and messages with them, but for those that unlocked too.
    buffered: int
    flushes: int


def _options(size: int, numa_node: Optional[int], small_pages: bool) -> Any:
    numa = 0 if numa_node is None else numa_node + 1
    if size >> 64 or numa >> 32:
        raise errors.InvalidError(f"no space has {size} bytes on node {numa_node}")
    return byref(COptions(size, numa, small_pages))


def _name(path: Union[str, bytes, os.PathLike[str]]) -> bytes:
    name = os.fsencode(path)
    if b"\0" in name:
        raise errors.InvalidError(f"{path!r} names no file")
    return name


def _text(text: Optional[str]) -> Optional[bytes]:
    if text is not None and "\0" in text:
        raise errors.InvalidError(f"{text!r} has a zero inside")
    return None if text is None else text.encode()


def _size(size: int) -> int:
    if size >> 64:
        raise errors.InvalidError(f"no space has {size} bytes")
    return size


def _way(
    manager: Optional[str], tenant: Optional[str], secret: Optional[str], pod: Optional[str] = None, size: int = 0
) -> Any:
    """To a pool."""
    texts = [_text(text) for text in (manager, tenant, secret, pod)]
    return byref(CPoolOptions(*texts, COptions(size, 0, 0)))


def _pods(pods: Optional[Iterable[str]]) -> Tuple[Any, int]:
    """An array of names, and how many."""
    if isinstance(pods, str):
        raise errors.InvalidError(f"pods are several: [{pods!r}]")
    if pods is None:
        return None, 0
    names = [_text(pod) for pod in pods]
    return (c_char_p * len(names))(*names), len(names)


class Space(_Open):
    """A heap that many processes share. Use it from any thread.

    Each access raises :class:`InvalidError` if no object is there (it was freed, or was never allocated), and
    :class:`OutOfBoundsError` if it ends before. The checks are of the moment: that no process frees an object while another
    uses it is the application's business.
    """

    _what = "the space"

    def __init__(self, handle: _Handle, short: Any = quick) -> None:
        super().__init__(handle)
        # What short accesses are called through.
        self._short = short

    @classmethod
    def _opened(cls, function: Any, *arguments: Any, short: Any = quick) -> Space:
        pointer = c_void_p()
        status = function(*arguments, byref(pointer), _report.at)
        if status:
            raise _failed(status)
        return cls(_Handle(pointer, waiting.cenote_space_close), short)

    @classmethod
    def create(
        cls,
        path: Union[str, bytes, os.PathLike[str]],
        size: int = 1 << 30,
        *,
        numa_node: Optional[int] = None,
        small_pages: bool = False,
    ) -> Space:
        """Makes a space of ``size`` bytes in a file or device that holds nothing, such as ``/dev/shm/heap``. This
        process keeps it."""
        return cls._opened(waiting.cenote_space_create, _name(path), _options(size, numa_node, small_pages))

    @classmethod
    def open(
        cls, path: Union[str, bytes, os.PathLike[str]], *, numa_node: Optional[int] = None, small_pages: bool = False
    ) -> Space:
        """Opens one; this process keeps it, and former sessions end. :class:`BusyError` if another process keeps it."""
        return cls._opened(waiting.cenote_space_open, _name(path), _options(0, numa_node, small_pages))

    @classmethod
    def private(cls, size: int = 1 << 30) -> Space:
        """Makes one in memory of this process, gone with it."""
        return cls._opened(waiting.cenote_space_private, _options(size, None, False))

    @classmethod
    def connect(
        cls,
        name: str,
        manager: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        secret: Optional[str] = None,
        pod: Optional[str] = None,
        size: int = 0,
    ) -> Space:
        """Opens a space of a pool by its name, beside all other processes that have it open. ``manager`` is
        ``127.0.0.1:5440`` unless told otherwise. With a ``size`` the space is made if there is none of the name.
        :class:`LostError` if there is no manager; :class:`InvalidError` for a wrong name, tenant or secret."""
        options = _way(manager, tenant, secret, pod, _size(size))
        # Any access may have to ask a memory node or the manager, and wait for it: other threads run meanwhile.
        return cls._opened(waiting.cenote_space_connect, _text(name), options, short=waiting)

    @staticmethod
    def make(
        name: str,
        size: int,
        manager: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        secret: Optional[str] = None,
        pods: Optional[Iterable[str]] = None,
        mirrored: bool = False,
    ) -> None:
        """Makes a space of a pool, of ``size`` bytes, spread over the memory nodes of some pods, or of all;
        :meth:`connect` opens it.

        ``mirrored``: each part has a second memory on another memory node, which has every change before it is
        acknowledged. If the part's node is lost with its memory (``cenote pool forget``), the mirror takes its place,
        with all that was acknowledged, locks and sessions too. That holds while ``cenote pool status`` shows the mirror
        as whole: this waits for it, 15 seconds at most. Until ``forget`` accesses of the lost part raise
        :class:`LostError` or :class:`TimedOutError`: try again. It costs twice the memory and 8 MiB a part, and each
        access is a call (microseconds), from the part's own pod too. Processes that open the space, and its memory nodes
        (``cenote memory --rdma``), need libfabric.

        :class:`FullError` (pool, pods or quota; mirrored: no other memory node has room for the mirrors);
        :class:`InvalidError` if the name is taken, or a memory node of a mirrored space has no way for calls;
        :class:`BusyError` while memory or the name is taken back; :class:`LostError` and :class:`TimedOutError`: it was
        made once, or not at all."""
        way, flag = _way(manager, tenant, secret), int(mirrored)
        status = waiting.cenote_space_make(_text(name), _size(size), flag, *_pods(pods), way, _report.at)
        if status:
            raise _failed(status)

    @staticmethod
    def grow(
        name: str,
        size: int,
        manager: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        secret: Optional[str] = None,
        pods: Optional[Iterable[str]] = None,
    ) -> None:
        """Gives a space of a pool ``size`` bytes more, spread over the memory nodes of some pods, or of all.
        Members that have it open find them when there is no room elsewhere.

        :class:`FullError` (pool, pods or quota; what some nodes could give is added in any case); :class:`InvalidError`
        if there is no space of the name; :class:`LostError` and :class:`TimedOutError`: it has grown once, or not at
        all."""
        way = _way(manager, tenant, secret)
        status = waiting.cenote_space_grow(_text(name), _size(size), *_pods(pods), way, _report.at)
        if status:
            raise _failed(status)

    @staticmethod
    def drop(
        name: str, manager: Optional[str] = None, *, tenant: Optional[str] = None, secret: Optional[str] = None
    ) -> None:
        """Drops a space of a pool: what lies in it is gone. Every process that has it open is killed, this one too:
        close it before. :class:`InvalidError` if there is none of the name. Until the memory nodes have let go of it
        :meth:`connect` raises :class:`BusyError`, or with a ``size`` waits."""
        status = waiting.cenote_space_drop(_text(name), _way(manager, tenant, secret), _report.at)
        if status:
            raise _failed(status)

    def __enter__(self) -> Space:
        return self

    def session(self) -> Session:
        """A new allocator: one for a thread."""
        pointer = c_void_p()
        self._call(waiting.cenote_session_begin, byref(pointer))
        return Session(self, _Handle(pointer, waiting.cenote_session_close))

    # The next ones are short ways to what `_call` does: in Python each call of a function counts.

    def read(self, address: int, length: int) -> bytes:
        """The ``length`` bytes from ``address`` on."""
        into = create_string_buffer(length)
        handle = self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        read = self._short.cenote_read if length < LONG else waiting.cenote_read
        status = read(handle.pointer, address, into, length, _report.at)
        del handle
        if status:
            raise _failed(status)
        return into.raw

    def read_into(self, address: int, buffer: Buffer) -> None:
        """Fills ``buffer`` (a ``bytearray``, a writable ``memoryview``, an array) with the bytes from ``address`` on,
        without another copy."""
        into, length = _memory.writable(buffer)
        handle = self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        read = self._short.cenote_read if length < LONG else waiting.cenote_read
        status = read(handle.pointer, address, byref(into), length, _report.at)
        del handle
        if status:
            raise _failed(status)

    def write(self, address: int, data: Buffer) -> None:
        """Writes ``data`` to the bytes from ``address`` on, without another copy. A reader meanwhile may see a part of
        it."""
        at, length, _stays = (data, len(data), None) if type(data) is bytes else _memory.readable(data)
        handle = self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        write = self._short.cenote_write if length < LONG else waiting.cenote_write
        status = write(handle.pointer, address, at, length, _report.at)
        del handle
        if status:
            raise _failed(status)

    def load(self, address: int) -> int:
        """The word of 8 bytes at ``address``, a multiple of 8, in one step for all threads and processes."""
        word, handle = c_uint64(), self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        status = self._short.cenote_load(handle.pointer, address, byref(word), _report.at)
        del handle
        if status:
            raise _failed(status)
        return word.value

    def store(self, address: int, value: int) -> None:
        """Writes the word at ``address`` (modulo 2**64), in one step."""
        handle = self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        status = self._short.cenote_store(handle.pointer, address, value, _report.at)
        del handle
        if status:
            raise _failed(status)

    def compare_and_swap(self, address: int, expected: int, desired: int) -> int:
        """Writes ``desired`` to the word at ``address`` if it is ``expected``, in one step. The word that was there: it
        was done if that is ``expected``."""
        found, handle = c_uint64(), self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        status = self._short.cenote_cas(handle.pointer, address, expected, desired, byref(found), _report.at)
        del handle
        if status:
            raise _failed(status)
        return found.value

    def fetch_add(self, address: int, n: int = 1) -> int:
        """Adds to the word at ``address``, modulo 2**64, in one step. The word that was there."""
        found, handle = c_uint64(), self._handle
        if handle is None or address >> 64:
            raise self._refusal(address)
        status = self._short.cenote_fetch_add(handle.pointer, address, n, byref(found), _report.at)
        del handle
        if status:
            raise _failed(status)
        return found.value

    def _refusal(self, address: int) -> errors.Error:
        if self.closed:
            return errors.InvalidError("the space was closed")
        return _no_address(address)

    def read_many(self, wanted: Iterable[Tuple[int, int]]) -> List[bytes]:
        """Reads for each ``(address, length)``, in turn. Memory is asked for ahead, which one by one it is not."""
        pairs = [(address, create_string_buffer(length)) for address, length in wanted]
        self.read_many_into(pairs)
        return [into.raw for _, into in pairs]

    def read_many_into(self, wanted: Iterable[Tuple[int, Buffer]]) -> None:
        """Fills the buffer of each ``(address, buffer)``, in turn. The first that fails ends it: those before it are
        done."""
        lent = [(address, *_memory.writable(buffer)) for address, buffer in wanted]
        ops = (COp * len(lent))()
        for op, (address, into, length) in zip(ops, lent):
            op.address, op.memory, op.len = _checked(address), addressof(into), length
        self._call(waiting.cenote_read_many, ops, len(ops))

    def write_many(self, wanted: Iterable[Tuple[int, Buffer]]) -> None:
        """Writes each ``(address, data)``, in turn. The first that fails ends it: those before it are done."""
        lent = [(address, _memory.Lent(data)) for address, data in wanted]
        ops = (COp * len(lent))()
        for op, (address, data) in zip(ops, lent):
            op.address, op.memory, op.len = _checked(address), data.address, data.len
        self._call(waiting.cenote_write_many, ops, len(ops))

    def free(self, address: int) -> None:
        """Frees the object that begins at ``address``, whoever has allocated it."""
        self._call(waiting.cenote_free, _checked(address))

    def size_of(self, address: int) -> int:
        """Bytes that the object at ``address`` can hold: at least those that were asked for."""
        size = c_uint64()
        self._call(self._short.cenote_size_of, _checked(address), byref(size))
        return size.value

    @property
    def root(self) -> Address:
        """The address that what lies in the space is found by; ``NULL`` until it is set. What lies behind it must be in
        order before."""
        root = c_uint64()
        self._call(self._short.cenote_root, byref(root))
        return Address(root.value)

    @root.setter
    def root(self, address: int) -> None:
        self._call(self._short.cenote_set_root, _checked(address))

    def stats(self, part: int = 0) -> Stats:
        """What the part of that number is used for; all parts if it is 0."""
        if not 0 <= part < 256:
            raise errors.InvalidError(f"the space has no part {part}")
        stats = CStats()
        self._call(waiting.cenote_stats, part, byref(stats))
        return Stats(*(getattr(stats, name) for name in Stats._fields))

    def limit_cache(self, size: int) -> None:
        """What was read under locks, and stays in the process, takes ``size`` bytes at most. 0: nothing stays."""
        if not 0 <= size < 1 << 64:
            raise errors.InvalidError(f"no cache has {size} bytes")
        self._call(waiting.cenote_cache_limit, size)

    @property
    def cache_stats(self) -> CacheStats:
        """What was read and written under locks of what lies in other pods."""
        stats = CCacheStats()
        self._call(quick.cenote_cache_stats_of, byref(stats))
        return CacheStats(*(getattr(stats, name) for name in CacheStats._fields))

    def audit(self) -> List[str]:
        """Looks at everything that the space keeps about itself: what is wrong."""
        problems: List[str] = []
        tell = Problem(lambda text, _: problems.append(text.decode("utf-8", "replace")))
        self._call(waiting.cenote_audit, tell, None, byref(c_uint64()))
        return problems

    def __repr__(self) -> str:
        return "<closed Space>" if self.closed else f"<Space of {self.stats().extents} extents>"


class Session(_Open):
    """Allocates objects of its space, from memory of its own: one for a thread. Closing it frees its objects of
    :attr:`Lifetime.SESSION`."""

    _what = "the session"

    def __init__(self, space: Space, handle: _Handle) -> None:
        super().__init__(handle)
        self._space = space

    def __enter__(self) -> Session:
        return self

    @property
    def space(self) -> Space:
        """Its space."""
        return self._space

    def alloc(self, length: int, lifetime: Lifetime = Lifetime.SPACE) -> Address:
        """A new object of at least ``length`` bytes, all zero. :class:`FullError` if there is no room."""
        if not 0 < length < 1 << 64:
            raise errors.InvalidError(f"an object has one byte at least, and less than 2**64: {length}")
        address = c_uint64()
        self._call(waiting.cenote_alloc, length, lifetime, byref(address))
        return Address(address.value)

    def free(self, address: int) -> None:
        """As :meth:`Space.free`."""
        self._space.free(address)

    def new_lock(self) -> Address:
        """A new lock in the space, held by nobody. It is freed as objects are."""
        address = c_uint64()
        self._call(waiting.cenote_lock_new, byref(address))
        return Address(address.value)

    def lock(self, lock: int, *, write: bool = True, timeout: Optional[float] = None) -> Lock:
        """Takes a lock, alone or (``write=False``) with other readers, and waits for it: ``timeout`` seconds at most,
        or as long as its owners live.

        :class:`TimedOutError` if it was not to be had in time. Use it as a context manager, or :meth:`Lock.unlock` it::

            with session.lock(address) as held:
                if held.owner_died:
                    ...  # repair what the lock protects
        """
        if timeout is not None and math.isnan(timeout):
            raise errors.InvalidError("nan is no time to wait")
        if timeout is None or timeout == math.inf:
            timeout = FOREVER
        else:
            timeout = int(min(max(timeout, 0.0), 1e9) * 1e9)
        held = CHeld()
        self._call(waiting.cenote_lock, _checked(lock), int(write), timeout, byref(held))
        return Lock(self, Address(lock), held.mode, bool(held.owner_died))


class Lock:
    """A lock that a session holds, until it is unlocked, or left broken. As a context manager it is unlocked at the
    end, unless it was left before."""

    def __init__(self, session: Session, address: Address, mode: int, owner_died: bool) -> None:
        self._session, self._address, self._mode = session, address, mode
        self._owner_died = owner_died
        self._is_left = False

    @property
    def owner_died(self) -> bool:
        """Whether the last writer died, or :meth:`left it broken <leave_broken>`, and may have left anything half done.
        Then the lock is held to write, whatever it was asked for."""
        return self._owner_died

    def read(self, address: int, length: int) -> bytes:
        """What the lock protects. What lies in another pod stays in the process, and is read there for as long as
        no session has written under the lock."""
        into = create_string_buffer(length)
        self._session._call(waiting.cenote_lock_read, self._address, _checked(address), into, length)
        return into.raw

    def write(self, address: int, data: Buffer) -> None:
        """Writes what the lock protects. Up to 256 bytes to another pod are collected, and in their place when
        :meth:`sync` or :meth:`unlock` returns; what is wrong with them is said then, and the next owner is told that
        this one died."""
        at, length, _stays = _memory.readable(data)
        self._session._call(waiting.cenote_lock_write, self._address, _checked(address), at, length)

    def sync(self) -> None:
        """Returns when all that was written is in its place."""
        self._session._call(waiting.cenote_lock_sync, self._address)

    def unlock(self) -> None:
        """Lets go of it, when all that was written is in its place."""
        self._is_left = True
        self._session._call(waiting.cenote_unlock, self._address, self._mode)

    def leave_broken(self) -> None:
        """Lets go of it as if its owner had died: its next holder is told so, and repairs what it protects. Of what
        was written and not synced the last may be missing. Held to read: as :meth:`unlock`."""
        self._is_left = True
        self._session._call(waiting.cenote_lock_leave_broken, self._address, self._mode)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self._is_left:
            self.unlock()
