"""What a call of libperdure can fail with: a class for each status of perdure.h, by what the caller can do."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Damage:
    """A finding of `Checkpoint.verify`."""

    file: str
    tensor: str  #: "" if the damage is not in a tensor
    kind: str
    block: int  #: of the tensor's box in that file, 64 KiB each
    is_proven: bool  #: False: it could not be read, which proves no damage
    text: str  #: a sentence


class Error(Exception):
    """The base of all: `status` is that of perdure.h; `file`, `tensor` and `block` are None where they do not apply."""

    status = 12

    def __init__(self, message: str, errno: int = 0, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.system_errno = errno  #: 0: no system call was involved
        self.where = where  #: source file and line of the library
        self.damage: list[Damage] = []  #: of verify
        place = re.search(r"(\S+): tensor (.+), (param|exp_avg|exp_avg_sq), block (\d+) of", message)
        self.file = place[1] if place else None
        self.tensor = place[2] if place else None
        self.block = int(place[4]) if place else None

    def __str__(self) -> str:
        return self.message


class InvalidError(Error, ValueError):
    """A request that cannot be met."""

    status = 1


class NotFoundError(Error, FileNotFoundError):
    status = 2


class ExistsError(Error, FileExistsError):
    status = 3


class BusyError(Error):
    """Somebody else holds a lock, or is using the directory."""

    status = 4


class NoSpaceError(Error, OSError):
    status = 5


class StorageError(Error, OSError):
    """A storage error, which proves no damage."""

    status = 6


class CorruptError(Error):
    """Bytes were read twice and are not the bytes that were written, or there is no valid checkpoint."""

    status = 7


class NoMemoryError(Error, MemoryError):
    status = 8


class PeerLostError(Error):
    """Another rank of a group is gone."""

    status = 9


class StoppedError(Error):
    """A progress function asked to stop."""

    status = 10


class UnsupportedError(Error):
    """This machine, build or format cannot do it."""

    status = 11


class BugError(Error):
    """Please report it."""


BY_STATUS = {kind.status: kind for kind in Error.__subclasses__()}
