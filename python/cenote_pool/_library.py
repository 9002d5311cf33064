"""The library: where it is found, and what its functions take.

1. the file that ``CENOTE_POOL_LIBRARY`` names, and no other;
2. ``libcenote_pool.so.0``, then ``libcenote_pool.so``, beside this module;
3. where the system looks for libraries (``ldconfig``, ``LD_LIBRARY_PATH``).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, List, Tuple

#: The binary interface that this package is written for.
ABI = 0
PLACE = "CENOTE_POOL_LIBRARY"
NAMES = (f"libcenote_pool.so.{ABI}", "libcenote_pool.so")


class LibraryNotFound(ImportError):
    """There is no ``libcenote_pool.so``, or not the right one; the message says where it was looked for."""


class CError(ctypes.Structure):
    """``cenote_error``."""

    _fields_ = [("status", c_int), ("message", c_char * 508)]


class COptions(ctypes.Structure):
    """``cenote_space_options``."""

    _fields_ = [("bytes", c_uint64), ("numa", c_uint32), ("small_pages", c_uint32)]


class CPoolOptions(ctypes.Structure):
    """``cenote_pool_options``."""

    _fields_ = [
        ("manager", c_char_p),
        ("tenant", c_char_p),
        ("secret", c_char_p),
        ("pod", c_char_p),
        ("space", COptions),
    ]


class COp(ctypes.Structure):
    """``cenote_read_op``, ``cenote_write_op``."""

    _fields_ = [("address", c_uint64), ("memory", c_void_p), ("len", c_size_t)]


class CStats(ctypes.Structure):
    """``cenote_space_stats``."""

    _fields_ = [
        (name, c_uint64)
        for name in ("parts", "extents", "free", "slabs", "in_runs", "retired", "broken", "objects", "bytes")
    ]


class CHeld(ctypes.Structure):
    """``cenote_held``."""

    _fields_ = [("mode", c_int32), ("owner_died", c_int32)]


class CCacheStats(ctypes.Structure):
    """``cenote_cache_stats``."""

    _fields_ = [(name, c_uint64) for name in ("hits", "misses", "pages", "bytes", "buffered", "flushes")]


class CStoreOptions(ctypes.Structure):
    """``cenote_store_options``."""

    _fields_ = [("bound", c_uint64), ("buckets", c_uint64)] + [
        (name, c_uint32) for name in ("threads", "flush", "checksums", "only_open")
    ]


class CStoreOp(ctypes.Structure):
    """``cenote_store_op``."""

    _fields_ = [("key", c_char_p), ("key_len", c_size_t), ("value", c_void_p), ("value_len", c_size_t)]


class CStorePutOptions(ctypes.Structure):
    """``cenote_store_put_options``."""

    _fields_ = [("time_to_live", c_uint64), ("tenant", c_uint32), ("replaces", c_uint32), ("replicas", c_uint64)]


class CStoreStats(ctypes.Structure):
    """``cenote_store_stats``."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "items",
            "used",
            "bound",
            "buckets",
            "evicted",
            "expired",
            "orphans",
            "hits",
            "misses",
            "lost",
            "damaged",
            "unreplicated",
            "bytes_in",
            "bytes_out",
            "pins",
        )
    ]


class CStorePiece(ctypes.Structure):
    """``cenote_store_piece``."""

    _fields_ = [("at", c_void_p), ("len", c_uint64), ("address", c_uint64)]


Problem = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)

_ERROR = POINTER(CError)
_WORD = POINTER(c_uint64)
_HANDLE = POINTER(c_void_p)
_OPS = POINTER(CStoreOp)
_RESULTS = POINTER(c_int64)
_COUNT = POINTER(c_size_t)
_PIECES = POINTER(CStorePiece)

#: What each function takes. All return a status.
SIGNATURES = {
    "cenote_space_create": [c_char_p, POINTER(COptions), _HANDLE, _ERROR],
    "cenote_space_open": [c_char_p, POINTER(COptions), _HANDLE, _ERROR],
    "cenote_space_private": [POINTER(COptions), _HANDLE, _ERROR],
    "cenote_space_connect": [c_char_p, POINTER(CPoolOptions), _HANDLE, _ERROR],
    "cenote_space_make": [
        c_char_p,
        c_uint64,
        c_uint32,
        POINTER(c_char_p),
        c_size_t,
        POINTER(CPoolOptions),
        _ERROR,
    ],
    "cenote_space_grow": [c_char_p, c_uint64, POINTER(c_char_p), c_size_t, POINTER(CPoolOptions), _ERROR],
    "cenote_space_drop": [c_char_p, POINTER(CPoolOptions), _ERROR],
    "cenote_space_close": [c_void_p, _ERROR],
    "cenote_root": [c_void_p, _WORD, _ERROR],
    "cenote_set_root": [c_void_p, c_uint64, _ERROR],
    "cenote_session_begin": [c_void_p, _HANDLE, _ERROR],
    "cenote_session_close": [c_void_p, _ERROR],
    "cenote_alloc": [c_void_p, c_uint64, c_int, _WORD, _ERROR],
    "cenote_free": [c_void_p, c_uint64, _ERROR],
    "cenote_lock_new": [c_void_p, _WORD, _ERROR],
    "cenote_lock": [c_void_p, c_uint64, c_int, c_uint64, POINTER(CHeld), _ERROR],
    "cenote_unlock": [c_void_p, c_uint64, c_int, _ERROR],
    "cenote_lock_leave_broken": [c_void_p, c_uint64, c_int, _ERROR],
    "cenote_lock_read": [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t, _ERROR],
    "cenote_lock_write": [c_void_p, c_uint64, c_uint64, c_void_p, c_size_t, _ERROR],
    "cenote_lock_sync": [c_void_p, c_uint64, _ERROR],
    "cenote_cache_limit": [c_void_p, c_uint64, _ERROR],
    "cenote_cache_stats_of": [c_void_p, POINTER(CCacheStats), _ERROR],
    "cenote_size_of": [c_void_p, c_uint64, _WORD, _ERROR],
    "cenote_read": [c_void_p, c_uint64, c_void_p, c_size_t, _ERROR],
    "cenote_write": [c_void_p, c_uint64, c_void_p, c_size_t, _ERROR],
    "cenote_read_many": [c_void_p, POINTER(COp), c_size_t, _ERROR],
    "cenote_write_many": [c_void_p, POINTER(COp), c_size_t, _ERROR],
    "cenote_load": [c_void_p, c_uint64, _WORD, _ERROR],
    "cenote_store": [c_void_p, c_uint64, c_uint64, _ERROR],
    "cenote_cas": [c_void_p, c_uint64, c_uint64, c_uint64, _WORD, _ERROR],
    "cenote_fetch_add": [c_void_p, c_uint64, c_uint64, _WORD, _ERROR],
    "cenote_stats": [c_void_p, c_uint8, POINTER(CStats), _ERROR],
    "cenote_store_open": [c_void_p, POINTER(CStoreOptions), _HANDLE, _ERROR],
    "cenote_store_close": [c_void_p, _ERROR],
    "cenote_store_put": [c_void_p, _OPS, c_size_t, POINTER(CStorePutOptions), _RESULTS, _ERROR],
    "cenote_store_get": [c_void_p, _OPS, c_size_t, _RESULTS, _ERROR],
    "cenote_store_remove": [c_void_p, _OPS, c_size_t, _RESULTS, _ERROR],
    "cenote_store_exists": [c_void_p, _OPS, c_size_t, c_int, _RESULTS, _COUNT, _ERROR],
    "cenote_store_unpin": [c_void_p, _OPS, c_size_t, _ERROR],
    "cenote_store_submit": [c_void_p, c_int, _OPS, c_size_t, POINTER(CStorePutOptions), _WORD, _ERROR],
    "cenote_store_event_fd": [c_void_p, POINTER(c_int), _ERROR],
    "cenote_store_drain": [c_void_p, _WORD, _RESULTS, c_size_t, _COUNT, _ERROR],
    "cenote_store_set_bound": [c_void_p, c_int64, c_uint64, _ERROR],
    "cenote_store_stats_of": [c_void_p, POINTER(CStoreStats), _ERROR],
    "cenote_store_spill_to": [c_void_p, c_char_p, c_uint64, c_int64, _ERROR],
    "cenote_store_flush_spilled": [c_void_p, c_uint64, _ERROR],
    "cenote_store_metrics": [c_void_p, Problem, c_void_p, _ERROR],
    "cenote_store_borrow": [c_void_p, c_char_p, c_size_t, _HANDLE, _ERROR],
    "cenote_store_pieces": [c_void_p, _PIECES, c_size_t, _COUNT, _ERROR],
    "cenote_store_return": [c_void_p, POINTER(c_int), _ERROR],
    "cenote_store_alloc": [c_void_p, c_char_p, c_size_t, c_uint64, POINTER(CStorePutOptions), _HANDLE, _ERROR],
    "cenote_store_room": [c_void_p, _PIECES, c_size_t, _COUNT, _ERROR],
    "cenote_store_publish": [c_void_p, _RESULTS, _ERROR],
    "cenote_store_discard": [c_void_p, _ERROR],
    "cenote_audit": [c_void_p, Problem, c_void_p, _WORD, _ERROR],
}


def _places() -> List[str]:
    named = os.environ.get(PLACE)
    if named:
        return [named]
    beside = (os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in NAMES)
    return [path for path in beside if os.path.exists(path)] + list(NAMES)


def _declared(library: Any) -> Any:
    for name, takes in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = takes, c_int
    return library


def _opened(path: str) -> Tuple[Any, Any]:
    # The same library twice: calls of the first let other threads of the interpreter run, which takes longer than a
    # short call does.
    waiting, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
    waiting.cenote_pool_abi.restype = c_uint32
    waiting.cenote_pool_version.restype = c_char_p
    abi = waiting.cenote_pool_abi()
    if abi != ABI:
        raise OSError(f"its binary interface is {abi}, and this package needs {ABI}")
    return _declared(waiting), _declared(quick)


def _load() -> Tuple[Any, Any]:
    tried = []
    for path in _places():
        try:
            return _opened(path)
        except (OSError, AttributeError) as error:
            tried.append(f"  {path}: {error}")
    raise LibraryNotFound(
        "libcenote_pool.so cannot be used. `make capi` builds it; set " + PLACE + " to its path. Tried:\n"
        + "\n".join(tried)
    )


#: Calls through ``waiting`` let other Python threads run meanwhile; those through ``quick`` do not, and cost less.
waiting, quick = _load()


def version() -> str:
    """The library's version."""
    text: bytes = waiting.cenote_pool_version()
    return text.decode()
