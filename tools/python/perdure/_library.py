"""perdure.h for ctypes: the library, its structs, and calls that raise. Every call releases the GIL."""

from __future__ import annotations

import _thread
import ctypes
import operator
import os
import threading
import warnings
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Optional

from . import errors

DIMS_MAX = 8
NEWEST = (1 << 64) - 1
U32_MAX, U64_MAX = (1 << 32) - 1, (1 << 64) - 1
KINDS = ("param", "exp_avg", "exp_avg_sq")
F32, U8, AS_STORED = 0, 10, 255
#: called with bytes done and bytes in all, maybe in another thread than the call; True stops the call
Progress = Callable[[int, int], Optional[bool]]
Dims = c_uint64 * DIMS_MAX


class CError(Structure):
    _fields_ = [("status", c_int), ("system_errno", c_int), ("where", c_char * 64), ("message", c_char * 960)]


PROGRESS = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
NOTE = CFUNCTYPE(None, c_void_p, c_char_p)


class CWatch(Structure):
    _fields_ = [("context", c_void_p), ("progress", PROGRESS), ("note", NOTE)]


class CTensor(Structure):
    _fields_ = [("name", c_char_p), ("kind", c_int), ("dtype", c_int), ("ndim", c_uint32), ("shape", Dims), ("bytes", c_uint64),
                ("has_moments", c_int), ("is_bytes", c_int)]


class COpenOptions(Structure):
    _fields_ = [("size", c_size_t), ("step", c_uint64), ("threads", c_uint32), ("watch", POINTER(CWatch)),
                ("is_shared", c_int)]


class CInfo(Structure):
    _fields_ = [("format", c_char_p), ("path", c_char_p), ("step", c_uint64), ("tensor_count", c_uint64), ("bytes", c_uint64),
                ("is_verified", c_int)]


class CSlice(Structure):
    _fields_ = [("tensor", c_uint64), ("start", POINTER(c_uint64)), ("count", POINTER(c_uint64)), ("as_", c_int), ("to", c_void_p),
                ("to_bytes", c_uint64)]


class CDamage(Structure):
    _fields_ = [("file", c_char_p), ("tensor", c_char_p), ("kind", c_int), ("block", c_uint64), ("is_proven", c_int), ("text", c_char_p)]


class CEntry(Structure):
    _fields_ = [("path", c_char_p), ("step", c_uint64), ("lineage", c_uint64), ("bytes", c_uint64), ("shards", c_uint32)]


class CConvert(Structure):
    _fields_ = [("size", c_size_t), ("source", c_char_p), ("destination", c_char_p), ("step", c_uint64), ("format", c_char_p), ("dtype", c_char_p),
                ("layout", c_char_p), ("compression", c_char_p), ("config", c_char_p), ("only", c_char_p), ("prefix", c_char_p), ("experts", c_char_p),
                ("fresh_optimizer", c_int), ("watch", POINTER(CWatch))]


GATHER = CFUNCTYPE(c_int, c_void_p, c_uint32, c_void_p, c_uint64, c_void_p)
BROADCAST = CFUNCTYPE(c_int, c_void_p, c_uint32, c_void_p, c_uint64)


class CGroup(Structure):
    _fields_ = [("context", c_void_p), ("rank", c_uint32), ("size", c_uint32), ("gather", GATHER), ("broadcast", BROADCAST)]


class CWriterOptions(Structure):
    _fields_ = [("size", c_size_t), ("keep_last", c_uint32), ("keep_every", c_uint64), ("compression", c_char_p), ("threads", c_uint32),
                ("continues", c_char_p)]


class CPiece(Structure):
    _fields_ = [("name", c_char_p), ("kind", c_int), ("dtype", c_int), ("is_bytes", c_int), ("ndim", c_uint32), ("shape", Dims), ("start", Dims),
                ("count", Dims), ("data", c_void_p)]


class CSave(Structure):
    _fields_ = [("size", c_size_t), ("step", c_uint64), ("pieces", POINTER(CPiece)), ("piece_count", c_uint64), ("metadata", c_char_p),
                ("created_by", c_char_p), ("watch", POINTER(CWatch))]


class CUpload(Structure):
    _fields_ = [("size", c_size_t), ("source", c_char_p), ("step", c_uint64), ("bucket", c_char_p), ("keep_last", c_uint32), ("keep_every", c_uint64),
                ("memory", c_uint64), ("bytes_per_second", c_uint64), ("watch", POINTER(CWatch))]


DAMAGE = CFUNCTYPE(None, c_void_p, POINTER(CDamage))

# name: (result, arguments). A fallible function returns a c_int and takes a CError last.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "version": (c_char_p, []),
    "dtype_name": (c_char_p, [c_int]),
    "dtype_block": (c_int, [c_int, POINTER(c_uint32), POINTER(c_uint32)]),
    "open": (c_int, [c_char_p, POINTER(COpenOptions), POINTER(c_void_p), POINTER(CError)]),
    "close": (None, [c_void_p]),
    "info": (None, [c_void_p, POINTER(CInfo)]),
    "tensor_at": (POINTER(CTensor), [c_void_p, c_uint64]),
    "text": (c_void_p, [c_void_p, c_char_p, POINTER(c_uint64)]),
    "text_name": (c_char_p, [c_void_p, c_uint64]),
    "read": (c_int, [c_void_p, POINTER(CSlice), c_uint64, POINTER(CWatch), POINTER(CError)]),
    "bytes_read": (c_uint64, [c_void_p]),
    "free": (None, [c_void_p]),
    "verify": (c_int, [c_void_p, DAMAGE, c_void_p, POINTER(CWatch), POINTER(CError)]),
    "list": (c_int, [c_char_p, POINTER(POINTER(CEntry)), POINTER(c_uint64), POINTER(CError)]),
    "convert": (c_int, [POINTER(CConvert), POINTER(CError)]),
    "writer_open": (c_int, [c_char_p, POINTER(CWriterOptions), POINTER(CGroup), POINTER(c_void_p), POINTER(CError)]),
    "writer_close": (None, [c_void_p]),
    "save": (c_int, [c_void_p, POINTER(CSave), POINTER(CError)]),
    "upload": (c_int, [POINTER(CUpload), POINTER(CGroup), POINTER(CError)]),
    "prune": (c_int, [c_char_p, c_uint32, c_uint64, POINTER(c_uint64), POINTER(CError)]),
}


def _find() -> ctypes.CDLL:
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libperdure.so.0")
    named = os.environ.get("PERDURE_LIBRARY")
    path = named or (beside if os.path.exists(beside) else "libperdure.so.0")
    try:
        return ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"{path} cannot be loaded: {e}; PERDURE_LIBRARY names libperdure.so") from e


class Library:
    """Functions of perdure.h without their prefix: `LIBRARY.version()`."""

    def __init__(self) -> None:
        handle = _find()
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(handle, "perdure_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


LIBRARY = Library()


def path(value: str | bytes | os.PathLike[str]) -> bytes:
    """For C, which ends a text at its first zero byte."""
    return _whole(os.fsencode(value), value)


def text(value: str, what: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}; give a str")
    try:
        return _whole(value.encode(), value)
    except UnicodeEncodeError as e:
        raise ValueError(f"{what}: {value[e.start]!r} at {e.start} is half a character; give whole ones") from None


def _whole(encoded: bytes, value: Any) -> bytes:
    if b"\0" in encoded:
        raise ValueError(f"{value!r} contains a zero byte")
    return encoded


def number(value: Any, what: str, most: int) -> int:
    """For C, where ctypes keeps the low bits of one that is out of range."""
    taken = operator.index(value)
    if not 0 <= taken <= most:
        raise errors.InvalidError(f"{what} is {taken}; give 0 to {most}")
    return taken


def step(value: Any) -> int:
    """Of a checkpoint; None: the newest."""
    return NEWEST if value is None else number(value, "step", NEWEST - 1)


def call(name: str, *arguments: Any, watch: Watch | None = None) -> None:
    """Calls a fallible function, and raises what it fails with or what a callback has raised."""
    error = CError()
    function = getattr(LIBRARY, name)
    if watch and threading.current_thread() is threading.main_thread():
        status = watch.wait_for(function, *arguments, ctypes.byref(error))
    else:
        status = function(*arguments, ctypes.byref(error))
    if watch:
        watch.end(status)
    if status:
        kind = errors.BY_STATUS.get(status, errors.BugError)
        raise kind(error.message.decode(), error.system_errno, error.where.decode())


class Watch:
    """Callbacks of a call. An exception in its progress function, or an interrupt, stops the call and comes out of it."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._raised: BaseException | None = None
        self._notes: list[str] = []
        self.struct = CWatch(None, PROGRESS(self._on_progress), NOTE(self._on_note))

    def wait_for(self, function: Any, *arguments: Any) -> int:
        """Calls in a thread of its own. Python runs signal handlers in the main thread, which waits here: in a call from there it would run
        them on entry to the callback, before any `try`, and ctypes drops what they raise."""
        ended: list[Any] = []
        go, done = threading.Lock(), threading.Lock()

        def run() -> None:
            go.acquire()
            try:
                ended.append(function(*arguments) if function else 0)
            except BaseException as e:
                ended.append(e)
            done.release()

        go.acquire()
        done.acquire()
        try:
            _thread.start_new_thread(run, ())  # threading.Thread would wait until it runs
        except BaseException:  # not begun: the caller may free what the call would use
            function = None
            go.release()
            raise
        while not ended:
            try:
                if go.locked():
                    go.release()
                done.acquire()
            except BaseException as e:
                self._raised = e
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return int(ended[0])

    def _on_progress(self, _: Any, done: int, total: int) -> int:
        try:
            return int(bool(self._raised or (self._progress and self._progress(done, total))))
        except BaseException as e:  # C code cannot pass it on
            self._raised = e
            return 1

    def _on_note(self, _: Any, text: bytes) -> None:
        self._notes.append(text.decode())

    def end(self, status: int) -> None:
        if self._raised:
            raise self._raised
        for text in self._notes:
            warnings.warn(text, stacklevel=4)


class Handle:
    """Owns what the library opened. Closed with its last user: a thread that reads keeps it while another one closes."""

    def __init__(self, pointer: int, close: Callable[[int], None]) -> None:
        self.pointer, self.pid, self._close = pointer, os.getpid(), close

    def __del__(self) -> None:
        if os.getpid() == self.pid:  # a child has none of the threads
            self._close(self.pointer)


def in_use(handle: Handle | None, what: str) -> Handle:
    if handle is None:
        raise ValueError(f"{what} is closed")
    if handle.pid != os.getpid():
        raise errors.InvalidError(f"{what} was opened before fork(); open it in this process")
    return handle


_dtypes: dict[int, str] = {}
_dtypes_lock = threading.Lock()


def dtype_name(number: int) -> str:
    with _dtypes_lock:
        if number not in _dtypes:
            name = LIBRARY.dtype_name(number)
            _dtypes[number] = name.decode() if name else "unknown"
        return _dtypes[number]


def dtype_block(number: int) -> tuple[int, int]:
    """Elements and bytes of a block; one element but for GGUF's types."""
    elements, size = c_uint32(), c_uint32()
    return (elements.value, size.value) if LIBRARY.dtype_block(number, elements, size) else (0, 0)
