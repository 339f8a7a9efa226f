"""Checkpoints of large models: reads, checks, writes and converts those of perdure and of other programs.

    perdure.save("saved", model.state_dict(), step=100)
    with perdure.open("runs/mine") as checkpoint:
        norm = checkpoint["model.norm.weight"].numpy()
        rows = checkpoint["model.embed_tokens.weight"][1000:1010].torch()
"""

from ._library import LIBRARY as _LIBRARY
from .chat import render_chat
from .checkpoint import Checkpoint, Entry, Tensor, list_checkpoints, load, open, prune
from .errors import (BugError, BusyError, CorruptError, Damage, Error, ExistsError, InvalidError, NoMemoryError, NoSpaceError, NotFoundError,
                     PeerLostError, StoppedError, StorageError, UnsupportedError)
from .writing import Group, Piece, Writer, convert, save, upload

__version__: str = _LIBRARY.version().decode()
__all__ = ["BugError", "BusyError", "Checkpoint", "CorruptError", "Damage", "Entry", "Error", "ExistsError", "Group", "InvalidError", "NoMemoryError",
           "NoSpaceError", "NotFoundError", "PeerLostError", "Piece", "StoppedError", "StorageError", "Tensor", "UnsupportedError", "Writer", "convert", "list_checkpoints",
           "load", "open", "prune", "render_chat", "save", "upload"]
