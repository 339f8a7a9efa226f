#!/usr/bin/env python3
"""What a user without root and sudo reads: the names of the missing packages, and the wheel; without MPI and oneDNN alone the build continues.
An HDF5 of the user's own is found before the system's.

usage: no_root.py SOURCE
"""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.abspath(sys.argv[1])
DPKG_QUERY = """#!/bin/sh
for name; do :; done
case " $MISSING " in *" $name "*) exit 1 ;; esac
echo install ok installed
"""
ALL_MISSING = ["-DCMAKE_FIND_ROOT_PATH=/absent", "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY", "-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY"]
NO_MPI = ["-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON"]
WHEEL = "tools/wheel.sh"


def run(words, expect, **named):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **named)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def check_packages(directory):
    """tools/packages.sh as another user, with no sudo on PATH and a dpkg-query of the test."""
    os.chmod(directory, 0o755)
    programs = os.path.join(directory, "bin")
    os.mkdir(programs)
    for name in ("bash", "env", "grep", "id", "sh"):
        os.symlink(shutil.which(name), os.path.join(programs, name))
    with open(os.path.join(programs, "dpkg-query"), "w", encoding="ascii") as f:
        f.write(DPKG_QUERY)
    os.chmod(os.path.join(programs, "dpkg-query"), 0o755)
    script = shutil.copy(os.path.join(SOURCE, "tools", "packages.sh"), directory)
    user = [shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    for missing, code, words in (("", 0, []), ("libdnnl-dev openmpi-bin", 0, ["apt-get install openmpi-bin libdnnl-dev", "going on without"]),
                                 ("libzstd-dev openmpi-bin", 69, ["apt-get install openmpi-bin libzstd-dev", WHEEL])):
        said = run([*user, shutil.which("bash"), script, "build", "run"], code, env={"PATH": programs, "MISSING": missing}, cwd="/")
        assert all(word in said for word in words) and bool(said) == bool(words) and (code or WHEEL not in said), f"missing {missing}: {said}"


def check_build(directory):
    """The configuration alone: the ninja of the test only makes cmake's own checks."""
    programs = os.path.join(directory, "ninja")
    os.mkdir(programs)
    with open(os.path.join(programs, "ninja"), "w", encoding="ascii") as f:
        f.write(f'#!/bin/sh\ncase "$1 $PWD" in --version* | *CMakeScratch* | *CMakeTmp*) exec {shutil.which("ninja")} "$@" ;; esac\n')
    os.chmod(os.path.join(programs, "ninja"), 0o755)
    environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}")

    def build(name, expect, *options):
        return run([os.path.join(SOURCE, "tools", "build.sh"), os.path.join(directory, name), "-DPERDURE_TESTS=OFF", "-DPERDURE_CUDA=OFF", *options],
                   expect, env=environment)

    said = build("nothing", 1, *ALL_MISSING, *NO_MPI)
    assert "apt-get install libhdf5-dev liburing-dev" in said and "libmicrohttpd-dev" in said and WHEEL in said, said
    for name in ("libdnnl-dev\n", "without oneDNN", "without MPI"):
        assert name in said, f"{name} is not in {said}"
    prefix = os.path.join(directory, "hdf5")
    for name in ("include/hdf5.h", "lib/libhdf5.so"):
        os.makedirs(os.path.dirname(os.path.join(prefix, name)))
        open(os.path.join(prefix, name), "wb").close()
    assert "without MPI" in build("no_mpi", 0, *NO_MPI, f"-DCMAKE_PREFIX_PATH={prefix}")
    for name, words in (("CMakeCache.txt", f"={prefix}/include\n"), ("CMakeCache.txt", f"={prefix}/lib/libhdf5.so\n"),
                        ("tools/library/perdure.pc", f" -L{prefix}/lib -Wl,-rpath,{prefix}/lib -lhdf5 ")):
        with open(os.path.join(directory, "no_mpi", name), encoding="utf-8") as f:
            assert words in f.read(), f"{name} lacks {words}"
    said = build("mpi", 1, *NO_MPI, "-DPERDURE_MPI=ON")
    assert "apt-get install libopenmpi-dev openmpi-bin\n" in said and WHEEL in said, said


with tempfile.TemporaryDirectory(prefix="perdure-install-") as workspace:
    check_packages(workspace)
    check_build(workspace)
print("ok: packages and build name what is missing, and the wheel")
