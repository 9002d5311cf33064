"""The store that everybody shares: values by key, for any number of processes."""

from __future__ import annotations

import os
import threading
from ctypes import addressof, byref, c_char, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Union

from . import _memory, errors
from ._library import CStoreOp, CStoreOptions, CStorePiece, CStorePutOptions, CStoreStats, Problem, waiting
from ._space import Space, _failed, _Handle, _Open, _report

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A result of a get: the key is not there.
MISSING = -1
#: A result that is below this: it failed, with the status that is so much below.
FAILED = -100

Key = Union[bytes, str]

_PUT, _GET, _EXISTS, _PIN, _REMOVE = range(5)


def _key(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


class _Batch:
    """Keys and buffers as the library takes them, and what has to stay meanwhile."""

    __slots__ = ("ops", "count", "kept")

    def __init__(self, keys: Iterable[Key]) -> None:
        names = [_key(key) for key in keys]
        self.count = len(names)
        self.ops: Any = (CStoreOp * self.count)()
        self.kept: List[object] = [names]
        for op, name in zip(self.ops, names):
            op.key, op.key_len = name, len(name)

    def _buffers(self, buffers: Iterable[Buffer]) -> List[Buffer]:
        given = list(buffers)
        if len(given) != self.count:
            raise errors.InvalidError(f"{self.count} keys, and {len(given)} buffers")
        return given

    def reads(self, buffers: Iterable[Buffer]) -> _Batch:
        """With values to be put."""
        for op, data in zip(self.ops, self._buffers(buffers)):
            lent = _memory.Lent(data)
            op.value, op.value_len = lent.address, lent.len
            self.kept.append(lent)
        return self

    def writes(self, buffers: Iterable[Buffer]) -> _Batch:
        """With memory for values."""
        for op, data in zip(self.ops, self._buffers(buffers)):
            first, length = _memory.writable(data)
            op.value, op.value_len = addressof(first), length
            self.kept.append(first)
        return self


class _StoreHandle(_Handle):
    """Buffers of batches that are under way stay until the library has let go of them."""

    __slots__ = ("kept", "lock")

    def __init__(self, pointer: c_void_p, close: Any) -> None:
        super().__init__(pointer, close)
        self.kept: Dict[int, _Batch] = {}
        self.lock = threading.Lock()

    def __del__(self) -> None:
        super().__del__()
        self.kept.clear()


def _put_options(ttl: Optional[float], tenant: int, replace: bool, replicas: int) -> Any:
    nanoseconds = 0 if ttl is None else max(1, int(ttl * 1e9))
    if nanoseconds >> 64 or tenant >> 32 or replicas >> 8:
        raise errors.InvalidError(f"no value is of tenant {tenant} for {ttl} seconds")
    return byref(CStorePutOptions(nanoseconds, tenant, int(replace), replicas))


def _pieces(function: Any, pointer: Any) -> List[Tuple[Optional[int], int]]:
    room, count = 1, c_size_t()
    while True:
        pieces = (CStorePiece * room)()
        status = function(pointer, pieces, room, byref(count), _report.at)
        if not status:
            return [(piece.at, piece.len) for piece in pieces[: count.value]]
        if count.value <= room:
            raise _failed(status)
        room = count.value


def _views(pieces: List[Tuple[Optional[int], int]]) -> List[memoryview]:
    if any(at is None for at, _ in pieces):
        raise errors.InvalidError("a piece of the value lies in memory that this process does not map")
    # One by one: a piece has up to 1 MiB.
    return [memoryview((c_char * length).from_address(at)).cast("B") for at, length in pieces]  # type: ignore[arg-type]


class Borrow(_Open):
    """A value in place: a context manager. ``pieces`` are views of it, to be read until it is closed and not after;
    ``held`` says afterwards whether the bytes were the value's to the end."""

    _what = "the borrow"

    def __init__(self, pointer: c_void_p) -> None:
        self._held = c_int(0)
        held = self._held

        def end(pointer: Any, error: Any) -> Any:
            return waiting.cenote_store_return(pointer, byref(held), error)

        super().__init__(_Handle(pointer, end))
        self.pieces = [view.toreadonly() for view in _views(_pieces(waiting.cenote_store_pieces, pointer))]

    @property
    def held(self) -> bool:
        """Whether it held to its end."""
        return bool(self._held.value)

    def __enter__(self) -> Borrow:
        return self


class Room(_Open):
    """Room for a value that is filled in place: a context manager. ``pieces`` are views to be written until it is
    published or closed, and not after."""

    _what = "the room"

    def __init__(self, pointer: c_void_p) -> None:
        super().__init__(_Handle(pointer, waiting.cenote_store_discard))
        self.pieces = _views(_pieces(waiting.cenote_store_room, pointer))

    def publish(self) -> bool:
        """Lets others see it; false if a value was there before, which stays."""
        handle, result = self._open(), c_int64()
        self._handle, self.pieces = None, []
        # It is closed by this call.
        handle._close = lambda pointer, error: 0
        if waiting.cenote_store_publish(handle.pointer, byref(result), _report.at):
            raise _failed(_report.error.status)
        return result.value == 1

    def __enter__(self) -> Room:
        return self


class Store(_Open):
    """Values by key in a space. Use it from any thread; calls let other threads of the interpreter run, and bytes are
    copied from and to buffers without a copy in between.

    >>> from cenote_pool import Space, Store
    >>> with Space.private(32 << 20) as space, Store.of(space) as store:
    ...     store.put(["a", "b"], [b"one", b"two"])
    ...     store.put(["a"], [b"other"])
    ...     store.exists(["a", "b", "c"])
    ...     room = bytearray(3)
    ...     store.get_into(["b", "c"], [room, bytearray(3)]), bytes(room)
    [1, 1]
    [0]
    ([True, True, False], 2)
    ([3, -1], b'two')
    """

    _what = "the store"
    _handle: Optional[_StoreHandle]

    @classmethod
    def of(
        cls,
        space: Space,
        *,
        create: bool = True,
        bound: int = 0,
        flush: bool = False,
        checksums: bool = False,
        threads: int = 0,
        buckets: int = 0,
    ) -> Store:
        """The store of an open space, which is made if there is none, unless ``create`` is false. ``bound``, ``flush``
        and ``buckets`` are of a store that is made: bytes that all values may take, whether bytes are written back for
        other hosts of incoherent memory, and how large its table is at first."""
        if bound >> 64 or buckets >> 64 or threads >> 32:
            raise errors.InvalidError(f"no store has {bound} bytes, {buckets} buckets and {threads} threads")
        options = CStoreOptions(bound, buckets, threads, int(flush), int(checksums), int(not create))
        pointer, opened = c_void_p(), space._open()
        status = waiting.cenote_store_open(opened.pointer, byref(options), byref(pointer), _report.at)
        if status:
            raise _failed(status)
        return cls(_StoreHandle(pointer, waiting.cenote_store_close))

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
        **options: Any,
    ) -> Store:
        """The store of a space of a pool, by the space's name, as :meth:`Space.connect` opens it; ``options`` as
        :meth:`of`."""
        with Space.connect(name, manager, tenant=tenant, secret=secret, pod=pod, size=size) as space:
            return cls.of(space, **options)

    @classmethod
    def open(
        cls, path: Union[str, bytes, os.PathLike[str]], *, create: bool = True, size: int = 0, **options: Any
    ) -> Store:
        """The store of a space in a file, which this process keeps; ``size`` is that of a file that is made;
        ``options`` as :meth:`of`."""
        is_made = create and not (os.path.exists(path) and os.path.getsize(path))
        sized: Dict[str, Any] = {"size": size} if size else {}
        with Space.create(path, **sized) if is_made else Space.open(path) as space:
            return cls.of(space, create=create, **options)

    def __enter__(self) -> Store:
        return self

    def _each(self, function: Any, batch: _Batch, *arguments: Any) -> List[int]:
        results = (c_int64 * batch.count)()
        self._call(function, batch.ops, batch.count, *arguments[:1], results, *arguments[1:])
        return list(results)

    def put(
        self,
        keys: Iterable[Key],
        buffers: Iterable[Buffer],
        *,
        ttl: Optional[float] = None,
        tenant: int = 0,
        replace: bool = False,
        replicas: int = 0,
    ) -> List[int]:
        """Puts values. By key: 1, or 0 if a value was there, which stays unless it is to be replaced (``replicas``:
        copies in other parts); below :data:`FAILED`: it failed, by so much the status."""
        options = _put_options(ttl, tenant, replace, replicas)
        return self._each(waiting.cenote_store_put, _Batch(keys).reads(buffers), options)

    def get_into(self, keys: Iterable[Key], buffers: Iterable[Buffer]) -> List[int]:
        """Copies values. By key: the value's bytes (its buffer may be longer), :data:`MISSING`, or a failure as of
        :meth:`put`."""
        return self._each(waiting.cenote_store_get, _Batch(keys).writes(buffers))

    def exists(self, keys: Iterable[Key], pin: bool = False) -> Tuple[List[bool], int]:
        """Which keys are there, and how many of the first ones all are. Pinned ones stay until they are unpinned as
        often."""
        prefix = c_size_t()
        found = self._each(waiting.cenote_store_exists, _Batch(keys), int(pin), byref(prefix))
        return [result == 1 for result in found], prefix.value

    def unpin(self, keys: Iterable[Key]) -> None:
        """Gives back one pin of each key."""
        batch = _Batch(keys)
        self._call(waiting.cenote_store_unpin, batch.ops, batch.count)

    def remove(self, keys: Iterable[Key]) -> List[bool]:
        """Takes values out: which were there."""
        return [result == 1 for result in self._each(waiting.cenote_store_remove, _Batch(keys))]

    def event_fd(self) -> int:
        """A descriptor that is readable when batches are done: the store's, to be polled only."""
        fd = c_int()
        self._call(waiting.cenote_store_event_fd, byref(fd))
        return fd.value

    def _submit(self, what: int, batch: _Batch, options: Any = None) -> int:
        handle, number = self._open(), c_uint64()
        # No other thread is told of the batch before its buffers are kept. Kept from before the call on, as an
        # interrupt
        # may come between the library's taking them and the next line here.
        with handle.lock:  # type: ignore[attr-defined]
            kept, until_numbered = handle.kept, -1 - id(batch)  # type: ignore[attr-defined]
            kept[until_numbered] = batch
            try:
                self._call(waiting.cenote_store_submit, what, batch.ops, batch.count, options, byref(number))
            except errors.Error:
                # Refused: nothing of it was begun.
                del kept[until_numbered]
                raise
            kept[number.value] = batch
            del kept[until_numbered]
        return number.value

    def submit_put(
        self,
        keys: Iterable[Key],
        buffers: Iterable[Buffer],
        *,
        ttl: Optional[float] = None,
        tenant: int = 0,
        replace: bool = False,
        replicas: int = 0,
    ) -> int:
        """As :meth:`put`, but does not wait: the batch's number. The buffers may not change until :meth:`drain`
        tells of it."""
        return self._submit(_PUT, _Batch(keys).reads(buffers), _put_options(ttl, tenant, replace, replicas))

    def submit_get(self, keys: Iterable[Key], buffers: Iterable[Buffer]) -> int:
        """As :meth:`get_into`, but does not wait: the batch's number."""
        return self._submit(_GET, _Batch(keys).writes(buffers))

    def submit_exists(self, keys: Iterable[Key], pin: bool = False) -> int:
        """As :meth:`exists`, but does not wait: the batch's number."""
        return self._submit(_PIN if pin else _EXISTS, _Batch(keys))

    def submit_remove(self, keys: Iterable[Key]) -> int:
        """As :meth:`remove`, but does not wait: the batch's number."""
        return self._submit(_REMOVE, _Batch(keys))

    def drain(self) -> List[Tuple[int, List[int]]]:
        """The batches that are done, with a result a key as the calls that wait give them (1 or 0 of exists and
        remove)."""
        handle, room = self._open(), 64
        done: List[Tuple[int, List[int]]] = []
        with handle.lock:  # type: ignore[attr-defined]
            while True:
                number, count, results = c_uint64(), c_size_t(), (c_int64 * room)()
                status = waiting.cenote_store_drain(
                    handle.pointer, byref(number), results, room, byref(count), _report.at
                )
                if status and count.value > room:
                    room = count.value
                    continue
                if status:
                    raise _failed(status)
                if not number.value:
                    return done
                handle.kept.pop(number.value, None)  # type: ignore[attr-defined]
                done.append((number.value, list(results[: count.value])))

    def set_bound(self, size: int, tenant: Optional[int] = None) -> None:
        """Bytes that a tenant's values may take, or all; 0: as much as there is."""
        self._call(waiting.cenote_store_set_bound, -1 if tenant is None else tenant, size)

    def usage(self) -> Dict[str, int]:
        """What there is, and what this process did: ``cenote_store_stats`` says what each is."""
        stats = CStoreStats()
        self._call(waiting.cenote_store_stats_of, byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_}  # type: ignore[misc]

    def metrics(self) -> str:
        """What all processes did and what there is, in Prometheus's text format."""
        texts: List[str] = []
        tell = Problem(lambda text, _: texts.append(text.decode()))
        self._call(waiting.cenote_store_metrics, tell, None)
        return texts[0]

    def spill_to(self, directory: Union[str, "os.PathLike[str]"], size: int, tenant: Optional[int] = None) -> None:
        """What this process evicts goes to files there, up to ``size`` bytes; ``0``: what others have spilled is read.

        Processes that reach each other's files under the same directory read each other's values; for others they are
        not there.
        """
        whose = -1 if tenant is None else tenant
        self._call(waiting.cenote_store_spill_to, os.fsencode(directory), size, whose)

    def flush_spilled(self, timeout: float) -> None:
        """Waits until what was spilled is in files, for so many seconds at most (:class:`TimedOutError`)."""
        self._call(waiting.cenote_store_flush_spilled, int(timeout * 1e9))

    def borrow(self, key: Key) -> Optional[Borrow]:
        """Lends a value where it lies; ``None`` if it is not there."""
        name, pointer = _key(key), c_void_p()
        self._call(waiting.cenote_store_borrow, name, len(name), byref(pointer))
        return Borrow(pointer) if pointer.value else None

    def alloc(
        self,
        key: Key,
        size: int,
        *,
        ttl: Optional[float] = None,
        tenant: int = 0,
        replace: bool = False,
        replicas: int = 0,
    ) -> Room:
        """Room for a value of ``size`` bytes, to be filled in place and published."""
        name, pointer = _key(key), c_void_p()
        if size < 0 or size >> 64:
            raise errors.InvalidError(f"a value of {size} bytes")
        options = _put_options(ttl, tenant, replace, replicas)
        self._call(waiting.cenote_store_alloc, name, len(name), size, options, byref(pointer))
        return Room(pointer)
