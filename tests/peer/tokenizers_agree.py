#!/usr/bin/env python3
"""The `tokenizers` package and perdure give the same tokens of 10 MB of mixed text, and the same text of these tokens.

usage: tokenizers_agree.py PEER_TOKENIZE DIRECTORY     (of tests/golden/tokenizers)

Text that is no UTF-8 is decoded with errors="replace" for the package. PERDURE_TEST_SEED replays a seed. Exit 77: there is no
package."""
import array
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "helpers"))
from mixed_text import mixed_text

try:
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has tokenizers", file=sys.stderr)
    sys.exit(77)

BYTES = 10_000_000
program, folder = sys.argv[1:3]
seed = int(os.environ.get("PERDURE_TEST_SEED") or time.time())
raw = mixed_text(seed, BYTES)
failed = 0
with tempfile.TemporaryDirectory() as room:
    text_path, ids_path, decoded_path = (os.path.join(room, name) for name in ("text", "ids", "decoded"))
    with open(text_path, "wb") as f:
        f.write(raw)
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
        path = os.path.join(folder, name)
        reference = Tokenizer.from_file(path)
        expected = reference.encode(raw.decode("utf-8", "replace")).ids
        subprocess.run([program, path, text_path, ids_path, decoded_path], check=True)
        ids = array.array("i", open(ids_path, "rb").read()).tolist()
        first = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        same_text = open(decoded_path, "rb").read() == reference.decode(expected, skip_special_tokens=False).encode()
        if ids == expected and same_text:
            print(f"{name}: {len(ids)} tokens, equal")
        else:
            failed = 1
            print(f"{name}: seed {seed}: tokens differ first at {first}: {ids[first:first + 5]} for {expected[first:first + 5]}"
                  if ids != expected else f"{name}: seed {seed}: the decoded texts differ")
sys.exit(failed)
