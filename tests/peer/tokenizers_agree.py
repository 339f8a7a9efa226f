#!/usr/bin/env python3
"""The `tokenizers` package and perdure give the same tokens of 1 MB of mixed text, and the same text of these tokens; of 10 MB, and of all
characters instead of some by seed, with PERDURE_TEST_SCALE=10.

usage: tokenizers_agree.py PEER_TOKENIZE DIRECTORY     (of tests/golden/tokenizers)

Text that is not UTF-8 is decoded with errors="replace" for the package. PERDURE_TEST_SEED replays a seed. Exit 77: there is no
package."""
import array
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "helpers"))
from mixed_text import mixed_text

try:
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has tokenizers", file=sys.stderr)
    sys.exit(77)

SCALE = min(int(os.environ.get("PERDURE_TEST_SCALE") or 1), 10)
BYTES = 1_000_000 * SCALE
program, folder = sys.argv[1:3]
seed = int(os.environ.get("PERDURE_TEST_SEED") or os.environ.get("PERDURE_TEST_SHARE", "0"))
CODES = [code for code in range(1, 0x30000) if not 0xd800 <= code < 0xe000]
CHARACTERS = "".join(f"a{chr(code)}" for code in sorted(random.Random(seed).sample(CODES, len(CODES) * SCALE // 10)))  # and what follows
failed = through = 0


def variants(room):
    """Pre-tokenizers that no golden file has, before GPT-2's."""
    with open(os.path.join(folder, "gpt2.json"), encoding="utf-8") as f:
        whole = json.load(f)
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        steps = [{"type": "Punctuation", "behavior": behavior}, whole["pre_tokenizer"]]
        path = os.path.join(room, f"Punctuation {behavior}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**whole, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}, f)
        yield path, CHARACTERS.encode()


def tokens_of(path, raw):
    """(ids, the decoded text) by perdure."""
    with open(text_path, "wb") as f:
        f.write(raw)
    subprocess.run([program, path, text_path, ids_path, decoded_path], check=True)
    return array.array("i", open(ids_path, "rb").read()).tolist(), open(decoded_path, "rb").read()


def through_gguf(room, path, raw):
    """Tokens once the tokenizer went through GGUF metadata; None: GGUF has no words for it."""
    code = subprocess.run([program, path, os.path.join(room, "tokenizer.gguf")], stderr=subprocess.DEVNULL, check=False).returncode
    assert code in (0, 2), f"{path}: exit {code}"
    return tokens_of(room, raw)[0] if code == 0 else None


with tempfile.TemporaryDirectory() as room:
    text_path, ids_path, decoded_path = (os.path.join(room, name) for name in ("text", "ids", "decoded"))
    mixed = mixed_text(seed, BYTES)
    golden = [(os.path.join(folder, name), mixed) for name in sorted(os.listdir(folder)) if name.endswith(".json")]
    for path, raw in golden + list(variants(room)):
        name = os.path.basename(path)
        reference = Tokenizer.from_file(path)
        expected = reference.encode(raw.decode("utf-8", "replace")).ids
        ids, decoded = tokens_of(path, raw)
        first = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        same_text = decoded == reference.decode(expected, skip_special_tokens=False).encode()
        if ids == expected and same_text:
            print(f"{name}: {len(ids)} tokens, equal")
        else:
            failed = 1
            print(f"{name}: seed {seed}: tokens differ first at {first}: {ids[first:first + 5]} for {expected[first:first + 5]}"
                  if ids != expected else f"{name}: seed {seed}: the decoded texts differ")
        made = through_gguf(room, path, raw)
        if made is not None and made != expected:
            failed = 1
            print(f"{name}: seed {seed}: other tokens once it went through GGUF")
        elif made is not None:
            through += 1
    assert through > 1, f"{through} tokenizers went through GGUF"
sys.exit(failed)
