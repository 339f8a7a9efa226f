#!/usr/bin/env python3
"""tools/launch/Containerfile installs and builds by the commands that install.sh tries, takes all sources that the build names, and has a
tag for each image of the manifests.

usage: same_commands.py SOURCE
"""
import glob
import os
import re
import sys

SOURCE = os.path.abspath(sys.argv[1])


def read(*names):
    with open(os.path.join(SOURCE, *names), encoding="utf-8") as f:
        return f.read()


container, install = read("tools", "launch", "Containerfile"), read("tests", "install", "install.sh")
runs = re.findall(r"^RUN (.*)", container, re.M)
packages, build = runs[:2]
assert f"; {packages}\"" in install, f"install.sh does not run: {packages}"
assert build.startswith("tools/build.sh ") and "tools/build.sh build " in install, build
debian = re.search(r"^ARG base=\S*/debian:(\S+)$", container, re.M)[1]
assert f"debian={debian} suite=bookworm" in install, f"install.sh tries another Debian than {debian}"

needed = set(re.findall(r"^add_subdirectory\((\w+)\)", read("CMakeLists.txt"), re.M)) | {"CMakeLists.txt", "tools", "LICENSE", "README.md"}
copied = set(" ".join(re.findall(r"^COPY (.*) \S+$", container, re.M)).split())
assert needed == copied, f"COPY lacks {needed - copied} or has too much: {copied - needed}"

tags = set(re.findall(r"--tag (\S+)", container))
for path in glob.glob(os.path.join(SOURCE, "tools", "launch", "kubernetes-*.yaml")):
    images = re.findall(r"image: (\S+)", read(path))
    assert images and set(images) <= tags, f"{path}: {images}; the Containerfile makes {tags}"
print(f"ok: {len(runs)} commands, {len(copied)} sources, {len(tags)} tags")
