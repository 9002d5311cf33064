"""Memory of Python objects, lent to the library without a copy, by the buffer protocol."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int, c_ssize_t, c_void_p, py_object
from typing import TYPE_CHECKING, Any, Tuple

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _PyBuffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_void_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [py_object, ctypes.POINTER(_PyBuffer), c_int]
_get.restype = c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_PyBuffer)]
_release.restype = None
_SIMPLE = 0


class Lent:
    """A contiguous buffer's bytes, to be read: at ``address``, ``len`` of them, until it is gone."""

    __slots__ = ("_buffer", "address", "len")

    def __init__(self, of: Buffer) -> None:
        self._buffer = _PyBuffer()
        _get(of, ctypes.byref(self._buffer), _SIMPLE)
        self.address: Any = self._buffer.buf
        self.len: int = self._buffer.len

    def __del__(self) -> None:
        # Does nothing where nothing was lent.
        _release(ctypes.byref(self._buffer))


def readable(data: Buffer) -> Tuple[Any, int, object]:
    """What the library takes for ``data``, its length in bytes, and what has to stay meanwhile."""
    # Not those of a derived class, which may say another length.
    if type(data) is bytes:
        return data, len(data), data
    lent = Lent(data)
    return lent.address, lent.len, lent


def writable(data: Buffer) -> Tuple[Any, int]:
    """The first byte of memory to be written, and how many there are. ``TypeError`` if it must not be, or is not in one
    piece."""
    # While it is viewed its length stays, whatever other threads do, and it is the memory's own: `len` may say
    # anything.
    view = memoryview(data)
    length = view.nbytes
    # Its first byte alone: a type for each length would have to be made.
    return (c_char.from_buffer(view) if length else c_char()), length
