"""torchtitan through perdure. In a function of a config_registry:

    config.checkpoint = perdure.titan.CheckpointManager.Config(enable=True, interval=100)

Checkpoints of torchtitan's own in the same folder, and those of Hugging Face, load as before.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed.checkpoint as dcp
from torchtitan.components.checkpoint import AsyncMode
from torchtitan.components.checkpoint import CheckpointManager as Base
from torchtitan.tools.utils import GarbageCollection

from . import torch as ours
from .checkpoint import list_checkpoints
from .errors import NotFoundError


class CheckpointManager(Base):  # type: ignore[misc]
    """Saves and loads with perdure; the rest is torchtitan's. `keep_latest_k` is perdure's keep_last."""

    @dataclass(kw_only=True, slots=True)
    class Config(Base.Config):  # type: ignore[misc]
        def __post_init__(self) -> None:
            Base.Config.__post_init__(self)
            if "://" in self.folder:
                raise ValueError(f"checkpoint.folder is {self.folder}; perdure saves to a disk: name a folder")
            if self.async_mode == "async_with_pinned_mem":
                raise ValueError('async_mode is "async_with_pinned_mem"; take "async", whose copy perdure keeps in pinned memory')

    def __init__(self, config: Config, **arguments: Any) -> None:
        super().__init__(config, **arguments)
        if self.enable:
            self._writer = ours.Writer(self.folder, process_group=self.pg, keep_last=config.keep_latest_k)
            self.keep_latest_k: int = 0  # else torchtitan deletes, too

    def dcp_save(self, state_dict: dict[str, Any], checkpoint_id: str, async_mode: AsyncMode, enable_garbage_collection: bool = False,
                 to_hf: bool = False) -> Any:
        if to_hf:
            return super().dcp_save(state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf)
        save = dcp.save if async_mode == AsyncMode.DISABLED else dcp.async_save
        done = save(state_dict, checkpoint_id=checkpoint_id, storage_writer=self._writer, planner=ours.Planner(), process_group=self.pg)
        if enable_garbage_collection:
            GarbageCollection.collect("GC collection invoked by checkpointer.")
        return None if async_mode == AsyncMode.DISABLED else done

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        is_far = "://" in checkpoint_id and not checkpoint_id.startswith("s3://")  # where perdure reads nothing
        if from_hf or is_far or os.path.exists(os.path.join(checkpoint_id, ".metadata")):
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        dcp.load(state_dict, storage_reader=ours.Reader(checkpoint_id))
        self.states["model"].load_state_dict(state_dict)

    def _ours(self, folder: str) -> dict[int, str]:
        """Paths of perdure's checkpoints by their steps."""
        try:
            return {entry.step: entry.path for entry in reversed(list_checkpoints(folder))}
        except NotFoundError:
            return {}

    def _find_load_step(self, folder: str = "") -> int:
        return max([super()._find_load_step(folder), *self._ours(folder or self.folder)])

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        return self._ours(folder or self.folder).get(step) or super()._create_checkpoint_id(step, folder)

    def _close(self) -> None:
        super()._close()
        self._writer.close()
