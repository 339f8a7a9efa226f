"""torch.distributed.checkpoint through perdure: every byte has a checksum, a save is one atomic commit, and any number of ranks loads it.

    writer = perdure.torch.Writer("saved")
    dcp.save(state, checkpoint_id="saved/step-100", storage_writer=writer, planner=perdure.torch.Planner())
    dcp.load(state, storage_reader=perdure.torch.Reader("saved"))
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import threading
import warnings
import weakref
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, StorageReader, StorageWriter
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

try:
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager
    from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
    STAGING = StagingOptions(torch.cuda.is_available(), False, False, False)
except ImportError:  # older torch: dcp.async_save makes its copies
    AsyncStager = StateDictStager = object  # type: ignore[assignment, misc]
try:
    from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
except ImportError:  # torch moved it
    from torch.distributed.checkpoint.default_planner import dedup_save_plans  # type: ignore[attr-defined, no-redef]

from . import _library as lib
from . import checkpoint as reading
from . import writing
from .errors import Error, InvalidError, NotFoundError, PeerLostError, StoppedError, StorageError, UnsupportedError

NDIM_MAX = lib.DIMS_MAX
BATCH_BYTES = 256 << 20  # read at a time, where that takes memory of its own
ZERO_COPY_BYTES_MIN, DIRECT_BYTES = 1 << 20, 4096  # ckpt/shard/write.c: larger tensors are written from where they are, if they lie on pages
MOMENT = re.compile(r"(?:.*\.)?state\.(.+)\.(exp_avg|exp_avg_sq)")


def _split(checkpoint_id: str) -> tuple[str, int | None]:
    """`DIRECTORY/step-100` is step 100 of a directory."""
    directory, name = os.path.split(checkpoint_id.rstrip("/"))
    found = re.fullmatch(r"step-(\d+)(?:-\d+)?", name)
    return (directory or ".", int(found[1])) if found else (checkpoint_id, None)


class _Group:
    """Ranks of a process group, for libperdure."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group: Any = dist.group.WORLD
        if group is not None:
            self._group = group
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        has_cpu = torch.device("cpu") in self._group._device_types
        self._device = torch.device("cpu") if has_cpu else torch.device("cuda", torch.cuda.current_device())

    def gather(self, root: int, data: bytes) -> list[bytes] | None:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        parts = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == root else None
        dist.gather(mine, parts, dst=dist.get_global_rank(self._group, root), group=self._group)
        return [part.cpu().numpy().tobytes() for part in parts] if parts else None

    def broadcast(self, root: int, data: bytes) -> bytes:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        dist.broadcast(mine, src=dist.get_global_rank(self._group, root), group=self._group)
        return mine.cpu().numpy().tobytes()


class Planner(DefaultSavePlanner):
    """Plans as torch's own, without its check of the whole plan, which older torch makes in quadratic time: perdure refuses pieces that
    overlap or leave a gap before it commits."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        if getattr(self, "_enable_plan_caching", False):
            return super().create_global_plan(all_plans)
        kept = dedup_save_plans(all_plans, self.dedup_save_to_lowest_rank)
        plans, metadata = create_default_global_save_plan(kept, rewrite_index_hints=False)  # the hints are for files of torch's own
        if self.flatten_state_dict:
            metadata = dataclasses.replace(metadata, planner_data=dict(ChainMap(*(plan.planner_data for plan in plans))))
        self.global_plan, self.metadata = plans, metadata
        return plans, metadata


def _rename(sizes: dict[str, tuple[Any, ...]]) -> dict[str, tuple[str, str]]:
    """Names under which a state_dict's tensors are kept, where these differ: AdamW's moments have their parameter's name and a kind of
    their own, and a parameter that of the optimizer. `sizes` maps names to size and type."""
    moments: dict[str, dict[str, str]] = {}
    for name in sizes:
        if found := MOMENT.fullmatch(name):
            moments.setdefault(found[1], {})[found[2]] = name
    first = next(iter(moments), None)
    if first is None:
        return {}
    for prefix in sorted(name[:-len(first)] for name in sizes if name == first or name.endswith("." + first)):
        names = {}
        for inner, kinds in moments.items():
            size = sizes.get(prefix + inner)
            if size and len(kinds) == 2 and len({sizes[name] for name in kinds.values()}) == 1 and sizes[kinds["exp_avg"]][0] == size[0]:
                names.update({name: (inner, kind) for kind, name in kinds.items()})
        if not names:
            continue
        names.update({name: (name[len(prefix):], "param") for name in sizes if prefix and name.startswith(prefix) and len(name) > len(prefix)})
        kept = {names.get(name, (name, "param")) for name in sizes}
        return names if len(kept) == len(sizes) else {}
    return {}


def _fold(size: Sequence[int], start: Sequence[int], count: Sequence[int], name: str, most: int = NDIM_MAX) -> tuple[list[int], list[int], list[int]]:
    """The same box with at most `most` dimensions: the last ones are joined."""
    last = most - 1
    if len(size) <= most:
        return list(size), list(start), list(count)
    if list(count[last + 1:]) != list(size[last + 1:]):
        raise UnsupportedError(f"tensor {name} is cut along dimension {last + 1} or a later one; cut one of the first 4")
    inner = math.prod(size[last + 1:])
    return [*size[:last], size[last] * inner], [*start[:last], start[last] * inner], [*count[:last], count[last] * inner]


class _PageStager(StateDictStager):
    """Copies large tensors to whole pages, from which libperdure writes without a copy of its own: direct I/O takes nothing else."""

    def _stage_untyped_storage(self, storage: Any, non_blocking: bool = False) -> Any:
        kept: Any = getattr(self, "_cached_storage_mapping", None)  # copies of the save before; torch's method fills what it finds there
        if kept is not None and storage.nbytes() >= ZERO_COPY_BYTES_MIN and not self.pin_memory and storage not in kept:
            kept[storage] = torch.from_numpy(reading.aligned(storage.nbytes(), DIRECT_BYTES)).untyped_storage()
        return super()._stage_untyped_storage(storage, non_blocking)


def _make_stager() -> DefaultStager:
    stager = DefaultStager(STAGING)
    if hasattr(stager, "_state_dict_stager"):
        stager._state_dict_stager = _PageStager(pin_memory=torch.cuda.is_available())
    return stager


class _Staged(dict[str, Any]):
    """A copied state. As long as somebody holds it, its memory is in use."""


def _newest_step(place: str | None) -> int | None:
    try:
        return reading.list_checkpoints(place)[0].step if place else None
    except (NotFoundError, IndexError):
        return None


class Writer(StorageWriter, AsyncStager):
    """Saves into `directory`, or where `checkpoint_id` says: "DIRECTORY/step-100" is step 100 of a directory. Without a step each save has
    the next one; `writer.step = 100` names that of the next save. `process_group` must be the one that dcp.save is given. Keep one writer for all saves: it keeps its plan,
    and the memory into which dcp.async_save copies the state.

    With `bucket` ("s3://bucket/prefix") every checkpoint is copied there after it is saved, in the same call: with dcp.async_save beside
    the training. Where the bucket fails the save has succeeded, and a warning says why. `bucket_keep_last` deletes older
    ones there. A new directory, as on a machine that replaces another, goes on with what is in the bucket."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, step: int | None = None,
                 process_group: dist.ProcessGroup | None = None, keep_last: int = 0, keep_every: int = 0, compression: str = "none",
                 bucket: str | None = None, bucket_keep_last: int = 0) -> None:
        self.directory = os.fspath(directory) if directory is not None else None
        self.step = step
        self._process_group = process_group
        self._options: dict[str, Any] = {"keep_last": keep_last, "keep_every": keep_every, "compression": compression}
        self._bucket, self._bucket_keep_last = bucket, bucket_keep_last
        self._writer: writing.Writer | None = None
        self._writer_key: Any = None
        self._is_coordinator, self._is_alone = False, False
        self._lock = threading.Lock()  # of write_data, since asynchronous saves may overlap
        self._stager: DefaultStager | None = None
        self._staged: weakref.ref[_Staged] | None = None

    def __getstate__(self) -> dict[str, Any]:  # of a save in another process
        return {**self.__dict__, "_writer": None, "_writer_key": None, "_process_group": None, "_stager": None, "_staged": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    _synchronize_after_execute = False  # stage returns when the copy is complete

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies a state for dcp.async_save. New memory takes longer than the copy, so a save uses that of the one before, unless that still writes."""
        if self._stager is None or (self._staged and self._staged() is not None):
            self._stager = _make_stager()
        try:
            staged: Any = self._stager.stage(state_dict)
        except AssertionError:  # the memory of a tensor has been resized
            self._stager = _make_stager()
            staged = self._stager.stage(state_dict)
        staged = _Staged(staged)
        self._staged = weakref.ref(staged)
        return staged

    def synchronize_staging(self) -> None:
        """Nothing: stage waits."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.directory, self.step = _split(os.fspath(checkpoint_id))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in os.fspath(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.directory)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("use_collectives=False: perdure saves one checkpoint of all ranks")
        if self.directory is None:
            raise InvalidError("no directory to save to; give Writer one, or dcp.save a checkpoint_id")
        if "://" in self.directory:
            raise UnsupportedError(f"{self.directory}: a save goes to a disk first; give Writer a directory, and bucket={self.directory!r}")
        self._is_coordinator = is_coordinator
        self._is_alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self._process_group) == 1
        if not self._is_alone and is_coordinator and dist.get_rank(self._process_group) != 0:
            self._is_alone = True  # no_dist

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Says under which names tensors are kept, and what a reader needs to give them back."""
        self._is_alone = self._is_alone or len(plans) == 1
        items = [item for plan in plans for item in plan.items]
        if not items:  # cached plans
            return plans
        tensors = {item.index.fqn: item.tensor_data for item in items if item.tensor_data is not None}
        names = _rename({name: (tuple(data.size), str(data.properties.dtype)) for name, data in tensors.items() if math.prod(data.size)})
        paths = dict(ChainMap(*(plan.planner_data for plan in plans if isinstance(plan.planner_data, dict))))
        metadata = json.dumps({
            "writer": "perdure.torch", "names": names, "paths": paths,
            "shapes": {name: list(data.size) for name, data in tensors.items() if len(data.size) > NDIM_MAX}})
        return [dataclasses.replace(plan, storage_data=({name: names[name] for name in {item.index.fqn for item in plan.items} & names.keys()},
                                                        None if number else metadata)) for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        pieces, results = [], []
        stored: tuple[dict[str, tuple[str, str]], str | None] = plan.storage_data or ({}, None)
        names, metadata = stored
        for item in plan.items:
            data: Any = planner.resolve_data(item)
            name, kind = names.get(item.index.fqn, (item.index.fqn, "param"))
            if item.type == WriteItemType.BYTE_IO:
                pieces.append(writing.Piece(name, data.getbuffer()))
                size = len(data.getbuffer())
            else:
                assert item.tensor_data is not None
                chunk = item.tensor_data.chunk
                shape, start, count = _fold(item.tensor_data.size, chunk.offsets, chunk.sizes, name)
                data = writing.take_torch(name, data)
                size = data.nbytes
                if size or not math.prod(shape):
                    pieces.append(writing.Piece(name, data.reshape(count), start, shape, kind))
            results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=None))
        group = None if self._is_alone else _Group(self._process_group)
        with self._lock:
            writer = self._open(group)
            step = self._agree_on_step(group)
            writer.save(pieces, step, metadata, created_by=f"perdure.torch, torch {torch.__version__}"[:63])
            if self._bucket:
                self._upload(step, group)
            self.step = None
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _upload(self, step: int, group: _Group | None) -> None:
        assert self.directory is not None and self._bucket is not None
        try:
            writing.upload(self.directory, self._bucket, step=step, group=group, keep_last=self._bucket_keep_last)
        except (PeerLostError, StoppedError):
            raise
        except Error as e:
            warnings.warn(f"step {step} is saved in {self.directory}, and not in {self._bucket}: {e}", stacklevel=2)

    def _agree_on_step(self, group: _Group | None) -> int:
        """The one that was named, or the next one, which rank 0 knows."""
        step, failure = self.step, None
        if step is None and (group is None or group.rank == 0):
            try:
                step = next((step + 1 for step in map(_newest_step, (self.directory, self._bucket)) if step is not None), 0)
            except Error as e:
                step, failure = lib.U64_MAX, e
        if self.step is None and group:
            step = int.from_bytes(group.broadcast(0, (step or 0).to_bytes(8, "little")), "little")
        if step == lib.U64_MAX:
            raise failure or StorageError("rank 0 cannot read which step is the newest")
        return step or 0

    def _open(self, group: _Group | None) -> writing.Writer:
        key = (self.directory, group is None)
        if self._writer is None or key != self._writer_key:
            self.close()
            assert self.directory is not None
            if group is None or group.rank == 0:
                with contextlib.suppress(OSError):  # opening fails then, on every rank
                    os.makedirs(os.path.dirname(os.path.abspath(self.directory)), exist_ok=True)
            self._writer, self._writer_key = writing.Writer(self.directory, group, continues=self._bucket, **self._options), key
            if self._bucket and (group is None or group.rank == 0):
                self._say_what_goes_on()
        return self._writer

    def _say_what_goes_on(self) -> None:
        with contextlib.suppress(Error):
            there = _newest_step(self._bucket) if _newest_step(self.directory) is None else None
            if there is not None:
                warnings.warn(f"{self.directory} has no checkpoints: saves go on after step {there} of {self._bucket}", stacklevel=2)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: write_data has committed."""

    def close(self) -> None:
        """Gives the directory back, so that another writer may have it."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Reader(StorageReader):
    """Loads checkpoints of `Writer`, and any other that perdure.open opens: the newest of a directory, `step`, or what `checkpoint_id` says."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, step: int | None = None, threads: int = 0) -> None:
        self.path = os.fspath(path) if path is not None else None
        self.step, self._threads = step, threads
        self._checkpoint: reading.Checkpoint | None = None
        self._tensors: dict[str, reading.Tensor] = {}
        self._shapes: dict[str, list[int]] = {}  #: of tensors whose last dimensions were joined

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.path, self.step = os.fspath(checkpoint_id), None
            if not os.path.exists(self.path):
                self.path, self.step = _split(self.path)
        self._checkpoint = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self.path is None:
            raise InvalidError("no path to load from; give Reader one, or dcp.load a checkpoint_id")
        is_shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1  # replicas read the same
        self._checkpoint = checkpoint = reading.Checkpoint(self.path, self.step, self._threads, is_shared)
        try:
            ours = json.loads(checkpoint.texts.get("metadata", "{}"))
        except ValueError:
            ours = {}
        if not isinstance(ours, dict) or ours.get("writer") != "perdure.torch":
            ours = {}
        kept = {tuple(place): name for name, place in ours.get("names", {}).items()}
        self._tensors, self._shapes, entries = {}, ours.get("shapes", {}), {}
        for kind in lib.KINDS:
            for name, tensor in checkpoint.kind(kind).items():
                fqn = kept.get((name, kind), name if kind == "param" else f"{kind}/{name}")
                self._tensors[fqn] = tensor
                entries[fqn] = BytesStorageMetadata() if tensor.is_bytes else _describe(tensor.torch_dtype, self._shapes.get(fqn, tensor.shape))
        for fqn, (dtype, shape) in ours.get("empty", {}).items():  # of earlier versions
            entries[fqn] = _describe(getattr(torch, dtype), shape)
        paths = {fqn: tuple(path) for fqn, path in ours.get("paths", {}).items()}
        return Metadata(entries, planner_data=paths or None)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        batch: list[tuple[Any, torch.Tensor, reading.Read]] = []
        taken = 0
        for item in plan.items:
            fqn = item.storage_index.fqn
            tensor = self._tensors.get(fqn)
            if item.type == LoadItemType.BYTE_IO:
                assert tensor is not None
                planner.load_bytes(item, io.BytesIO(tensor.numpy().tobytes()))
                continue
            target = planner.resolve_tensor(item).detach()
            if tensor is not None and target.nbytes:  # else it is empty
                _, start, count = _fold(self._shapes.get(fqn, tensor.shape), item.storage_offsets, item.lengths, fqn, tensor.ndim)
                part = tensor[tuple(slice(a, a + n) for a, n in zip(start, count))]
                is_direct = target.device.type == "cpu" and target.is_contiguous() and target.dtype == tensor.torch_dtype and not (
                    target.is_conj() or target.is_neg())
                read = reading.Read(part, part._torch_as(), True, target if is_direct else None)
                taken += 0 if is_direct else read.nbytes
                batch.append((item, target, read))
            if taken >= BATCH_BYTES:
                self._read_batch(batch, planner)
                batch, taken = [], 0
        self._read_batch(batch, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_batch(self, batch: list[tuple[Any, torch.Tensor, reading.Read]], planner: LoadPlanner) -> None:
        assert self._checkpoint is not None
        self._checkpoint.read([read for *_, read in batch])
        for item, target, read in batch:
            if read.result is not target:
                target.copy_(read.result.reshape(target.shape))
            planner.commit_tensor(item, target)


def _describe(dtype: torch.dtype, shape: Sequence[int]) -> TensorStorageMetadata:
    """A tensor in one piece: which files it lies in is perdure's to know."""
    size = torch.Size(shape)
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])
