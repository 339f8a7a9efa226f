#!/usr/bin/env python3
"""Runs a test where there is a GPU: need_gpu.py PERDURE COMMAND [ARGUMENT ...]. Exit code 77 and the reason where there is none.

A GPU is fast and rare: tests get PERDURE_TEST_SCALE 4 at least, which is every layout of 2, 3 and 4 ranks."""
import json
import os
import subprocess
import sys

found = json.loads(subprocess.run([sys.argv[1], "doctor", "--json"], capture_output=True, text=True, check=False).stdout)
rows = {row["what"]: row for row in found["findings"]}
if "gpu use" not in rows:
    print(f"skipped: {rows['gpu']['here']}")
    sys.exit(77)
if rows["gpu use"]["state"] != "ok":
    print(f"skipped: {rows['gpu use']['here']}")
    sys.exit(77)
scale = max(4, int(os.environ.get("PERDURE_TEST_SCALE", "1")))
sys.exit(subprocess.run(sys.argv[2:], env=dict(os.environ, PERDURE_TEST_SCALE=str(scale)), check=False).returncode)
