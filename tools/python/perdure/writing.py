"""Saving tensors of any names, from one process or from many that save together."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy

from . import _library as lib
from .checkpoint import NUMPY, TORCH
from .errors import InvalidError

DTYPE_MAX = 16  # numbers above are not written
NUMPY_DTYPES = {numpy.dtype(code): number for number, code in reversed(NUMPY.items()) if number <= DTYPE_MAX and number not in (1, 4, 5)}
TORCH_DTYPES = {"torch." + name: number for number, name in TORCH.items() if number <= DTYPE_MAX}


class Group(Protocol):
    """Ranks that save one checkpoint together. Every rank makes the same calls in the same order. The functions may be called in another
    thread than the call that needs them, one at a time."""

    rank: int
    size: int

    def gather(self, root: int, data: bytes) -> list[bytes] | None:
        """Of all ranks, in their order, on the root; None elsewhere. `data` is as long on every rank."""

    def broadcast(self, root: int, data: bytes) -> bytes:
        """What the root gave; `data` is as long on every rank."""


class Piece(NamedTuple):
    """A box of a tensor: `data` is an array of NumPy, a tensor of torch on the CPU, or bytes, which are kept as they are. A tensor of more
    than 4 dimensions is cut only along the first 4."""

    name: str
    data: Any
    start: Sequence[int] | None = None  #: None: the whole tensor
    shape: Sequence[int] | None = None  #: of the whole tensor
    kind: str = "param"


def _give(place: int, got: bytes, size: int, what: str) -> None:
    if len(got) != size:
        raise InvalidError(f"{what} of the group gave {len(got)} bytes; {size} were to come")
    ctypes.memmove(place, got, size)


class _Callbacks:
    """The functions of a group for C. What they raise comes out of the call that they end."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.raised: BaseException | None = None
        self.struct = lib.CGroup(None, group.rank, group.size, lib.GATHER(self._gather), lib.BROADCAST(self._broadcast))

    def _gather(self, _: Any, root: int, send: int, size: int, recv: int) -> int:
        try:
            parts = self.group.gather(root, ctypes.string_at(send, size))
            if self.group.rank == root:
                assert parts is not None
                _give(recv, b"".join(parts), size * self.group.size, "gather")
            return 0
        except BaseException as e:
            self.raised = e
            return 1

    def _broadcast(self, _: Any, root: int, data: int, size: int) -> int:
        try:
            _give(data, self.group.broadcast(root, ctypes.string_at(data, size)), size, "broadcast")
            return 0
        except BaseException as e:
            self.raised = e
            return 1


def _call(group: _Callbacks | None, name: str, *arguments: Any, watch: lib.Watch | None = None) -> None:
    try:
        lib.call(name, *arguments, watch=watch)
    except lib.errors.PeerLostError as e:
        raised, group.raised = group.raised, None  # type: ignore[union-attr]
        raise e from raised


def take_torch(name: str, data: Any) -> Any:
    """A tensor of torch as it lies in memory: dense, on the CPU, without conjugations that torch puts off."""
    if data.is_meta or str(data.layout) != "torch.strided":
        raise InvalidError(f"tensor {name} is {'on the meta device' if data.is_meta else data.layout}; dense tensors with data are saved")
    data = data.detach().resolve_conj().resolve_neg().contiguous()
    return data if data.device.type == "cpu" else data.cpu()


def _prepare(piece: Piece) -> tuple[lib.CPiece, Any]:
    """The struct, and what owns the bytes that it points to."""
    data, is_bytes = piece.data, isinstance(piece.data, (bytes, bytearray, memoryview))
    if is_bytes:
        data = numpy.frombuffer(data, numpy.uint8)
    if type(data).__module__.partition(".")[0] == "torch":
        data = take_torch(piece.name, data)
        number, shape, at = TORCH_DTYPES.get(str(data.dtype)), tuple(data.shape), data.data_ptr()
    elif isinstance(data, (Mapping, str)):
        raise InvalidError(f"tensor {piece.name} is a {type(data).__name__}; arrays, tensors of torch and bytes are saved")
    else:
        data = numpy.ascontiguousarray(data).reshape(numpy.shape(data))
        if data.dtype.byteorder == ">":
            data = data.astype(data.dtype.newbyteorder("<"))
        number, shape, at = NUMPY_DTYPES.get(data.dtype), data.shape, data.ctypes.data
    if number is None:
        raise InvalidError(f"tensor {piece.name}: {data.dtype} is not a type that is saved")
    if piece.kind not in lib.KINDS:
        raise InvalidError(f"tensor {piece.name}: kind is {piece.kind!r}; {', '.join(lib.KINDS)} are known")
    whole, start = piece.shape if piece.shape is not None else shape, piece.start if piece.start is not None else (0,) * len(shape)
    if not len(whole) == len(start) == len(shape):
        raise InvalidError(f"tensor {piece.name}: {len(shape)} dimensions of data, {len(start)} of start, {len(whole)} of shape")
    if len(shape) > lib.DIMS_MAX:
        raise InvalidError(f"tensor {piece.name} has {len(shape)} dimensions; at most {lib.DIMS_MAX} are saved")
    return lib.CPiece(lib.text(piece.name, "name"), lib.KINDS.index(piece.kind), number, is_bytes, len(shape), lib.Dims(*whole), lib.Dims(*start),
                      lib.Dims(*shape), at or 1), data


def _pieces_of(tensors: Mapping[str, Any]) -> list[Piece]:
    pieces = []
    for name, data in tensors.items():
        kind, _, rest = lib.text(name, f"name {name!r}").decode().partition("/")
        pieces.append(Piece(rest, data, kind=kind) if rest and kind in lib.KINDS[1:] and rest in tensors else Piece(name, data))
    return pieces


class Writer:
    """Saves checkpoints into a directory, which is made if it is absent and belongs to this writer until `close()`.

    With a `group`, which makes every call collective, ranks save one checkpoint together. `keep_last` and `keep_every` delete older
    checkpoints after each save; `compression` is "none", or "zstd:1" to "zstd:19". If the directory has no checkpoints, the writer
    goes on with those in `continues`, "s3://bucket/prefix", to which `upload` copied them: a disk that is lost does not end the history.
    """

    def __init__(self, directory: str | os.PathLike[str], group: Group | None = None, *, keep_last: int = 0, keep_every: int = 0,
                 compression: str = "none", threads: int = 0, continues: str | None = None) -> None:
        self.directory = os.fspath(directory)
        self._group = _Callbacks(group) if group else None
        options = lib.CWriterOptions(ctypes.sizeof(lib.CWriterOptions), lib.number(keep_last, "keep_last", lib.U32_MAX),
                                     lib.number(keep_every, "keep_every", lib.U64_MAX), lib.text(compression, "compression"),
                                     lib.number(threads, "threads", lib.U32_MAX),
                                     lib.text(continues, "continues") if continues is not None else None)
        pointer = ctypes.c_void_p()
        self._handle: lib.Handle | None = None
        _call(self._group, "writer_open", lib.path(directory), options, ctypes.byref(self._group.struct) if self._group else None, pointer)
        self._handle = lib.Handle(pointer.value or 0, lib.LIBRARY.writer_close)

    def save(self, pieces: Sequence[Piece] | Mapping[str, Any], step: int, metadata: str | None = None, created_by: str | None = None,
             progress: lib.Progress | None = None) -> None:
        """Saves a checkpoint. On return it is durable, whole and the newest; whatever fails, those before it stay as they were.
        Over all ranks the pieces of a tensor cover it exactly once; a mapping has whole tensors, as `save` below takes them. `metadata`
        is kept as the text "metadata"."""
        handle = lib.in_use(self._handle, f"the writer of {self.directory}")  # stays until the save ends, whoever closes
        try:
            prepared = [_prepare(piece) for piece in (_pieces_of(pieces) if isinstance(pieces, Mapping) else pieces)]
            structs, watch = (lib.CPiece * len(prepared))(*(struct for struct, _ in prepared)), lib.Watch(progress)
            save = lib.CSave(ctypes.sizeof(lib.CSave), lib.number(step, "step", lib.U64_MAX), structs, len(prepared),
                             lib.text(metadata, "metadata") if metadata is not None else None,
                             lib.text(created_by, "created_by") if created_by is not None else None, ctypes.pointer(watch.struct))
            _call(self._group, "save", handle.pointer, save, watch=watch)
        finally:
            del handle  # an exception would keep it, and its directory

    def close(self) -> None:
        """Gives the directory back; a save in another thread ends first."""
        self._handle = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def save(directory: str | os.PathLike[str], tensors: Mapping[str, Any], step: int = 0, *, metadata: str | None = None, keep_last: int = 0,
         compression: str = "none", progress: lib.Progress | None = None) -> None:
    """Saves tensors by their names as the checkpoint `step` of a directory: arrays of NumPy, tensors of torch, and bytes, which are kept as
    they are. "exp_avg/NAME" and "exp_avg_sq/NAME" are AdamW's moments of NAME. A tensor has at most 8 dimensions. The directory is made
    if it is absent, below one that exists. Saving a step that is not above those saved before keeps these; the new one counts as the newest."""
    with Writer(directory, keep_last=keep_last, compression=compression) as writer:
        writer.save(tensors, step, metadata, progress=progress)


def upload(source: str | os.PathLike[str], bucket: str, *, step: int | None = None, group: Group | None = None, keep_last: int = 0,
           keep_every: int = 0, memory: int = 64 << 20, bytes_per_second: int = 0, progress: lib.Progress | None = None) -> None:
    """Copies a checkpoint of perdure into "s3://bucket/prefix", where `open` finds it; one that is there already is left as it is.

    With a `group`, which makes the call collective, each rank sends some of the shards. `keep_last` and `keep_every` delete older ones there;
    `memory` and `bytes_per_second` are limits of this rank."""
    callbacks, watch = _Callbacks(group) if group else None, lib.Watch(progress)
    options = lib.CUpload(ctypes.sizeof(lib.CUpload), lib.path(source), lib.step(step), lib.text(bucket, "bucket"),
                          lib.number(keep_last, "keep_last", lib.U32_MAX), lib.number(keep_every, "keep_every", lib.U64_MAX),
                          lib.number(memory, "memory", lib.U64_MAX), lib.number(bytes_per_second, "bytes_per_second", lib.U64_MAX),
                          ctypes.pointer(watch.struct))
    _call(callbacks, "upload", options, ctypes.byref(callbacks.struct) if callbacks else None, watch=watch)


def convert(source: str | os.PathLike[str], destination: str | os.PathLike[str], *, format: str = "perdure", step: int | None = None,
            dtype: str | None = None, layout: str | None = None, compression: str | None = None, config: str | os.PathLike[str] | None = None,
            only: str | None = None, prefix: str | None = None, experts: str | None = None, fresh_optimizer: bool = False,
            progress: lib.Progress | None = None) -> None:
    """Converts a checkpoint that `open` opens, in bounded memory, into `destination`, which is made.

    `format` is "perdure", which a run of perdure continues from, "safetensors", "dcp", "torchtitan", "megatron", "universal", "gguf" or
    "llmc". What has no place in it is named in a warning. `dtype` is that of parameters in another program's format: "fp32", "bf16" or
    "fp16"; `layout` and `compression` ("dp=4,tp=2", "zstd:3") are for perdure. `config` is a config.json, or a run's configuration, if the
    source does not describe its model; `only` exports tensors whose names contain it; `prefix` names one of several models; `experts` is
    "separate", one tensor an expert, or "fused", all of a block in two, for the formats that have both; with `fresh_optimizer` moments that
    the source lacks begin at zero."""
    texts = [None if text is None else lib.path(text) for text in (format, dtype, layout, compression, config, only, prefix, experts)]
    watch = lib.Watch(progress)
    lib.call("convert", lib.CConvert(ctypes.sizeof(lib.CConvert), lib.path(source), lib.path(destination), lib.step(step),
                                     *texts, fresh_optimizer, ctypes.pointer(watch.struct)), watch=watch)
