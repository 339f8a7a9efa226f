"""Open checkpoints: a mapping of names to tensors that are read when asked for, and only as much as is asked for."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import operator
import os
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Iterable, Union

import numpy as np

from . import _library as lib
from .errors import CorruptError, Damage, InvalidError

if TYPE_CHECKING:
    from torch import Tensor as TorchTensor
    from torch import dtype as TorchType

# Number of perdure.h: NumPy's type of the stored bytes, and torch's.
NUMPY = {0: "f4", 1: "u2", 2: "f2", 3: "f8", 4: "u1", 5: "u1", 6: "i1", 7: "i2", 8: "i4", 9: "i8", 10: "u1", 11: "u2", 12: "u4",
         13: "u8", 14: "?", 15: "c8", 16: "c16"}
TORCH = {0: "float32", 1: "bfloat16", 2: "float16", 3: "float64", 4: "float8_e4m3fn", 5: "float8_e5m2", 6: "int8", 7: "int16", 8: "int32",
         9: "int64", 10: "uint8", 11: "uint16", 12: "uint32", 13: "uint64", 14: "bool", 15: "complex64", 16: "complex128"}
FOREIGN_TO_NUMPY = (1, 4, 5)  # bf16 and fp8, which NumPy does not have
WATCHED_BYTES_MIN = 8 << 20  # less is read in no time
PAGE_BYTES = 2 << 20  # a large page
SHARED_BYTES = 64 << 20

Dim = Union[int, range]


class Tensor:
    """A tensor of a checkpoint, or a part of one: `tensor[2:4]` is a Tensor again, and reads nothing.

    `numpy()`, `torch()` and `numpy.asarray(tensor)` read it. A step other than 1 reads what lies between, too.
    """

    __slots__ = ("_checkpoint", "_number", "_dtype", "_dims", "name", "kind", "has_moments", "is_bytes")

    def __init__(self, checkpoint: Checkpoint, number: int, c: lib.CTensor) -> None:
        self._checkpoint, self._number, self._dtype = checkpoint, number, c.dtype
        self._dims: tuple[Dim, ...] = tuple(range(n) for n in c.shape[:c.ndim])
        self.name: str = c.name.decode()
        self.kind: str = lib.KINDS[c.kind]
        self.has_moments = bool(c.has_moments)  #: of a parameter: False for a frozen one
        self.is_bytes = bool(c.is_bytes)  #: bytes that are no numbers, such as a serialised object

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(d) for d in self._dims if isinstance(d, range))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """As stored: "fp32", "bf16", "fp8_e4m3", ..."""
        return lib.dtype_name(self._dtype)

    @property
    def torch_dtype(self) -> TorchType:
        """What `torch()` gives."""
        import torch as module
        return getattr(module, TORCH.get(self._dtype, "float32"))

    @property
    def nbytes(self) -> int:
        """As stored."""
        elements, size = lib.dtype_block(self._dtype)
        return self.size * size // elements if elements else 0

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<perdure.Tensor {self.name} {self.kind} {self.dtype} {self.shape}>"

    def __getitem__(self, index: Any) -> Tensor:
        items = list(index if isinstance(index, tuple) else (index,))
        free = [i for i, d in enumerate(self._dims) if isinstance(d, range)]
        ellipses = [at for at, item in enumerate(items) if item is Ellipsis]  # an array compares its elements
        if len(ellipses) > 1:
            raise IndexError("at most one ellipsis")
        for at in ellipses:
            items[at:at + 1] = [slice(None)] * (len(free) - len(items) + 1)
        if len(items) > len(free):
            raise IndexError(f"{self.name}: {len(items)} indices, and it has {len(free)} dimensions")
        dims = list(self._dims)
        for number, (at, item) in enumerate(zip(free, items)):
            of = dims[at]
            assert isinstance(of, range)
            if isinstance(item, slice):
                if item.step is not None and item.step < 1:
                    raise IndexError(f"{self.name}: a step of {item.step}; steps are positive")
                dims[at] = of[item]
            else:
                try:
                    number_like: Any = None if isinstance(item, bool) else item
                    dims[at] = of[operator.index(number_like)]
                except TypeError:
                    raise TypeError(f"{self.name}: an index is a number, a slice or an ellipsis, not {type(item).__name__}") from None
                except IndexError:
                    raise IndexError(f"{self.name}: index {item} of dimension {number}, which has {len(of)}") from None
        part = object.__new__(Tensor)
        part._checkpoint, part._number, part._dtype, part._dims = self._checkpoint, self._number, self._dtype, tuple(dims)
        part.name, part.kind, part.has_moments, part.is_bytes = self.name, self.kind, self.has_moments, self.is_bytes
        return part

    def _box(self) -> tuple[list[int], list[int]]:
        """What is read: start and count of each dimension as stored."""
        start = [d if isinstance(d, int) else d.start if d else 0 for d in self._dims]
        count = [1 if isinstance(d, int) else d[-1] - d.start + 1 if d else 0 for d in self._dims]
        return start, count

    def _pick(self, box: Any) -> Any:
        """What was asked for, of what was read."""
        if all(isinstance(d, range) and d.step == 1 for d in self._dims):
            return box
        return box[tuple(0 if isinstance(d, int) else slice(None, None, d.step) for d in self._dims)]

    def numpy(self, raw: bool = False, progress: lib.Progress | None = None) -> np.ndarray:
        """Reads it. NumPy has neither bf16 nor fp8, nor GGUF's types: they become float32, exactly, or with `raw` their bits:
        uint16 for bf16, uint8 for the others, of GGUF's blocks as many along the last dimension as they have bytes."""
        plan = Read(self, self._numpy_as(raw))
        self._checkpoint.read([plan], progress)
        return plan.result

    def torch(self, progress: lib.Progress | None = None) -> TorchTensor:
        """Reads it into a new torch.Tensor of its own type; GGUF's types become float32."""
        plan = Read(self, self._torch_as(), torch=True)
        self._checkpoint.read([plan], progress)
        return plan.result

    def _numpy_as(self, raw: bool) -> int:
        return lib.AS_STORED if raw or (self._dtype in NUMPY and self._dtype not in FOREIGN_TO_NUMPY) else lib.F32

    def _torch_as(self) -> int:
        return lib.AS_STORED if self._dtype in TORCH else lib.F32

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a tensor of a checkpoint is read, which copies it")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)


def aligned(nbytes: int, page: int) -> np.ndarray:
    """New memory that begins at a multiple of `page`."""
    whole = np.empty(nbytes + page, "u1")
    return whole[-whole.ctypes.data % page:][:nbytes]


class _Memory:
    """New memory of `total` bytes, on large pages where the kernel gives them to NumPy: faults in small ones take longer than reading from the
    page cache. Tensors below 16 MiB share 64 MiB."""

    def __init__(self, total: int) -> None:
        self._total, self._shared = total, np.empty(0, "u1")

    def take(self, nbytes: int) -> np.ndarray:
        if nbytes >= SHARED_BYTES // 4:
            return self._aligned(nbytes)
        if nbytes > self._shared.size:
            self._shared = self._aligned(max(nbytes, min(self._total, SHARED_BYTES)))
        taken, aligned = self._shared[:nbytes], -(-nbytes // 64) * 64
        self._shared, self._total = self._shared[aligned:], self._total - aligned
        return taken

    @staticmethod
    def _aligned(nbytes: int) -> np.ndarray:
        return aligned(nbytes, PAGE_BYTES) if nbytes >= PAGE_BYTES else np.empty(nbytes, "u1")


class Read:
    """A tensor, the memory that it is read into, and the slice that says so. `into`: a tensor of torch that has its type and size."""

    def __init__(self, tensor: Tensor, as_: int = lib.AS_STORED, torch: bool = False, into: TorchTensor | None = None) -> None:
        start, count = tensor._box()
        self._tensor, self._number, self._count, self._is_torch = tensor, lib.F32 if as_ == lib.F32 else tensor._dtype, count, torch
        self._box: Any = into
        elements, size = lib.dtype_block(self._number)
        if not elements:
            raise InvalidError(f"tensor {tensor.name} has a type that is not read")
        self.nbytes = math.prod(count) * size // elements
        n = max(1, len(count))
        self._dims = (ctypes.c_uint64 * n)(*start), (ctypes.c_uint64 * n)(*count)  # lives as long as the call
        self.slice = lib.CSlice(tensor._number, self._dims[0], self._dims[1], as_, into.data_ptr() if into is not None else None, self.nbytes)

    def allocate(self, memory: _Memory) -> None:
        if self._box is not None:
            return
        data, count = memory.take(self.nbytes), self._count
        if self._is_torch:
            import torch as module
            dtype = getattr(module, TORCH[self._number])
            self._box = module.from_numpy(data).view(dtype).reshape(count) if self.nbytes else module.empty(count, dtype=dtype)
        else:
            elements, size = lib.dtype_block(self._number)
            box = data if elements > 1 else data.view(NUMPY[self._number])
            self._box = box.reshape([*count[:-1], count[-1] * size // elements] if elements > 1 else count)
        self.slice.to = data.ctypes.data

    @property
    def result(self) -> Any:
        return self._tensor._pick(self._box)


class Checkpoint(Mapping[str, Tensor]):
    """A read-only mapping of the names of parameters to tensors. `kind("exp_avg")` maps the same names to AdamW's first moments;
    "exp_avg/NAME" and "exp_avg_sq/NAME" name single ones.

    Threads may share one. It is closed by `close()`, a `with` block, or when nothing refers to it. A pickled one is opened again
    where it arrives, as in the workers of a data loader.
    """

    def __init__(self, path: str | os.PathLike[str], step: int | None = None, threads: int = 0, shared: bool = False) -> None:
        self._arguments = (os.fspath(path), step, threads, shared)
        pointer, watch = ctypes.c_void_p(), lib.Watch()
        options = lib.COpenOptions(ctypes.sizeof(lib.COpenOptions), lib.step(step), lib.number(threads, "threads", lib.U32_MAX),
                                   ctypes.pointer(watch.struct), shared)
        try:
            lib.call("open", lib.path(path), options, pointer, watch=watch)
        finally:  # an interrupt may come after it was opened
            self._handle: lib.Handle | None = lib.Handle(pointer.value, lib.LIBRARY.close) if pointer.value else None
        info = lib.CInfo()
        lib.LIBRARY.info(pointer, info)
        self.format: str = info.format.decode()  #: "perdure", "safetensors", "dcp", ...
        self.path: str = os.fsdecode(info.path)  #: of the checkpoint that was opened
        self.step: int = info.step  #: 0 if it does not say
        self.nbytes: int = info.bytes
        self.is_verified = bool(info.is_verified)  #: every byte that is read is verified: perdure's own checkpoints
        self._kinds: dict[str, dict[str, Tensor]] = {kind: {} for kind in lib.KINDS}
        for number in range(info.tensor_count):
            tensor = Tensor(self, number, lib.LIBRARY.tensor_at(pointer, number).contents)
            self._kinds[tensor.kind][tensor.name] = tensor
        self._texts = types.MappingProxyType(dict(self._read_texts(pointer)))

    @staticmethod
    def _read_texts(pointer: ctypes.c_void_p) -> Iterator[tuple[str, str]]:
        number, size = 0, ctypes.c_uint64()
        while (name := lib.LIBRARY.text_name(pointer, number)) is not None:
            at = lib.LIBRARY.text(pointer, name, size)
            yield name.decode(), ctypes.string_at(at, size.value).decode(errors="replace")
            number += 1

    @property
    def texts(self) -> Mapping[str, str]:
        """Small texts that lie in or beside it: config.json, tokenizer.json, a run's config.yaml."""
        return self._texts

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kinds["param"]:
            return self._kinds["param"][name]
        kind, _, rest = name.partition("/")
        if rest and rest in self._kinds.get(kind, ()):
            return self._kinds[kind][rest]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds["param"])

    def __len__(self) -> int:
        return len(self._kinds["param"])

    def kind(self, kind: str) -> Mapping[str, Tensor]:
        """The tensors of one kind: "param", "exp_avg" or "exp_avg_sq"."""
        return types.MappingProxyType(self._kinds[kind])

    def __repr__(self) -> str:
        return f"<perdure.Checkpoint {self.path} ({self.format}), step {self.step}, {len(self)} parameters>"

    def _use(self) -> lib.Handle:
        return lib.in_use(self._handle, self.path)

    def read(self, plans: list[Read], progress: lib.Progress | None = None) -> None:
        """Reads several parts at once."""
        handle = self._use()
        memory = _Memory(sum(plan.nbytes for plan in plans))
        for plan in plans:
            plan.allocate(memory)
        plans = [plan for plan in plans if plan.nbytes]
        slices = (lib.CSlice * len(plans))(*(plan.slice for plan in plans))
        watch = lib.Watch(progress) if progress or sum(plan.nbytes for plan in plans) >= WATCHED_BYTES_MIN else None
        lib.call("read", handle.pointer, slices, len(plans), ctypes.byref(watch.struct) if watch else None, watch=watch)

    def load(self, names: Iterable[str] | None = None, framework: str = "numpy", progress: lib.Progress | None = None) -> dict[str, Any]:
        """Reads tensors, all parameters by default, in the order that is best; "torch" or "numpy"."""
        if framework not in ("numpy", "torch"):
            raise ValueError(f"framework is {framework!r}; numpy and torch are known")
        if isinstance(names, str):
            raise TypeError(f"names is {names!r}; give several, such as [{names!r}]")
        plans = {}
        for name in self if names is None else names:
            tensor = self[name]
            is_torch = framework == "torch"
            plans[name] = Read(tensor, tensor._torch_as() if is_torch else tensor._numpy_as(False), is_torch)
        self.read(list(plans.values()), progress)
        return {name: plan.result for name, plan in plans.items()}

    @property
    def bytes_read(self) -> int:
        """Bytes that reading tensors has read from files so far."""
        return lib.LIBRARY.bytes_read(self._use().pointer)

    def verify(self, progress: lib.Progress | None = None) -> None:
        """Reads every byte and compares it with the checksums; goes on after damage.

        Raises CorruptError, or StorageError where bytes could not be read, whose `damage` lists all findings;
        UnsupportedError for a format without checksums."""
        found: list[Damage] = []

        def on_damage(_: Any, damage: Any) -> None:
            d = damage.contents
            found.append(Damage(os.fsdecode(d.file or b""), (d.tensor or b"").decode(), lib.KINDS[d.kind], d.block, bool(d.is_proven),
                                d.text.decode(errors="replace")))

        handle, watch = self._use(), lib.Watch(progress)
        try:
            lib.call("verify", handle.pointer, lib.DAMAGE(on_damage), None, ctypes.byref(watch.struct), watch=watch)
        except (CorruptError, OSError) as e:
            e.damage = found  # type: ignore[union-attr]
            if found:
                e.file, e.tensor, e.block = found[0].file, found[0].tensor, found[0].block  # type: ignore[union-attr]
            raise

    def close(self) -> None:
        """Closes it; a read in another thread ends first. Tensors that were read stay."""
        self._handle = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return Checkpoint, (self.path, *self._arguments[1:])


def open(path: str | os.PathLike[str], step: int | None = None, *, threads: int = 0, shared: bool = False) -> Checkpoint:
    """Opens a run, a directory of checkpoints (the newest, or `step`), one checkpoint, or a file or directory of another program
    (safetensors, torch.save, torch.distributed.checkpoint, Megatron-Core, DeepSpeed, GGUF, llm.c), all of which may be in a bucket.
    Reads metadata only, and executes nothing in it. `threads` read beside the calling one; 0: as many as there are cores, at most 8.
    With `shared` large reads go through the page cache, so that processes that read the same read the disk once."""
    return Checkpoint(path, step, threads, shared)


def load(path: str | os.PathLike[str], names: Iterable[str] | None = None, *, step: int | None = None, framework: str = "numpy") -> dict[str, Any]:
    """All parameters of a checkpoint, or those of `names`, as arrays of NumPy or tensors of torch."""
    with open(path, step) as checkpoint:
        return checkpoint.load(names, framework)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A checkpoint of a directory."""

    path: str
    step: int
    lineage: int  #: raised when a run's history is rewritten
    nbytes: int  #: of all shards
    shards: int


def list_checkpoints(path: str | os.PathLike[str]) -> list[Entry]:
    """The valid checkpoints of a run or a directory, newest first."""
    entries, count = ctypes.POINTER(lib.CEntry)(), ctypes.c_uint64()
    lib.call("list", lib.path(path), entries, count)
    try:
        return [Entry(os.fsdecode(e.path), e.step, e.lineage, e.bytes, e.shards) for e in entries[:count.value]]
    finally:
        lib.LIBRARY.free(entries)


def prune(path: str | os.PathLike[str], keep_last: int, keep_every: int = 0) -> int:
    """Deletes all checkpoints but the newest `keep_last` and those whose step `keep_every` divides. Returns how many it deleted."""
    removed = ctypes.c_uint64()
    lib.call("prune", lib.path(path), lib.number(keep_last, "keep_last", lib.U32_MAX), lib.number(keep_every, "keep_every", lib.NEWEST),
             removed)
    return removed.value
