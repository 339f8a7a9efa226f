"""Lightning through perdure: `Trainer(plugins=[perdure.lightning.CheckpointIO()])`.

A checkpoint of Lightning, NAME.ckpt, is then a directory, written by one process, that perdure.open and `perdure ckpt` read.
"""

from __future__ import annotations

import copy
import io
import os
import shutil
from typing import Any

import torch

try:
    from lightning.pytorch.plugins.io import CheckpointIO as _CheckpointIO
except ImportError:
    from pytorch_lightning.plugins.io import CheckpointIO as _CheckpointIO

from .checkpoint import open as _open
from .errors import InvalidError
from .writing import TORCH_DTYPES, save

REST, TENSOR = "lightning", "perdure.tensor"  #: everything but the tensors, as torch pickles it; the key that stands for a tensor there
NAME_MAX = 100


def _take_out(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The same without its tensors, which get the names of their places; parameters the model's own."""
    if isinstance(value, torch.Tensor) and value.numel() and str(value.dtype) in TORCH_DTYPES:  # the others stay
        name = path.removeprefix("state_dict.")
        if len(name) > NAME_MAX or name in tensors or name == REST:
            name = f"tensor-{len(tensors)}"
        tensors[name] = value
        return {TENSOR: name}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, f"{path}.{i}", tensors) for i, item in enumerate(value))
    if isinstance(value, dict):
        kept = copy.copy(value)  # with what its type adds, such as a state_dict's versions of modules
        for key, item in value.items():
            kept[key] = _take_out(item, f"{path}.{key}" if path else str(key), tensors)
        return kept
    return value


def _put_back(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_put_back(item, tensors) for item in value)
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        for key, item in value.items():
            value[key] = _put_back(item, tensors)
    return value


class CheckpointIO(_CheckpointIO):
    """Saves and loads NAME.ckpt as a checkpoint of perdure. What is no tensor torch pickles, and a load unpickles it, as torch.load does."""

    def __init__(self, compression: str = "none") -> None:
        self._compression = compression

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        if storage_options is not None:
            raise InvalidError("storage_options: perdure saves to a directory, and has none")
        tensors: dict[str, torch.Tensor] = {}
        rest = io.BytesIO()
        torch.save(_take_out(checkpoint, "", tensors), rest)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        save(path, {**tensors, REST: rest.getvalue()}, checkpoint.get("global_step", 0), keep_last=1, compression=self._compression)

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        with _open(path) as found:
            rest = torch.load(io.BytesIO(found[REST].numpy().tobytes()), weights_only=bool(weights_only))
            tensors = {name: _place(found[name].torch(), map_location) for name in found if name != REST}
        loaded: dict[str, Any] = _put_back(rest, tensors)
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        shutil.rmtree(path)


def _place(tensor: torch.Tensor, map_location: Any) -> torch.Tensor:
    """As torch.load places what lay on the CPU."""
    if callable(map_location):
        moved = map_location(tensor, "cpu")
        return tensor if moved is None else moved
    device = map_location.get("cpu", "cpu") if isinstance(map_location, dict) else map_location
    return tensor if device is None else tensor.to(device)
