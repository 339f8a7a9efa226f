#!/usr/bin/env python3
"""10,000 requests with random keys, prefixes and texts: the server recomputes every signature, and finds what was meant.
Arguments: PROGRAM [SEED]"""
import os
import random
import sys

from answers import Program, check
from server import Server

ALPHABET = "abcXYZ019-_.~ =+%&?#;:@!$'()*,\\\"<>[]{}|^`/äß€漢😀"


def key(rng):
    parts = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 30))).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "k"


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    rng, known = random.Random(seed), {}
    print(f"seed {seed}", flush=True)
    with Server() as server, Program(os.path.abspath(sys.argv[1]), server.environment()) as program:
        while len(server.store.requests) < 10000:
            name, text = key(rng), "".join(rng.choice("abc") for _ in range(rng.randint(0, 9)))
            check(program.call("put", name, text), "PD_OK", "")
            known[name] = text
            other = rng.choice(list(known)) if rng.random() < 0.1 else name
            if known[other]:
                check(program.call("get", other, 0, len(known[other])), "PD_OK", known[other])
            check(program.call("head", other), "PD_OK", f"{len(known[other])} ")
            check(program.call("list", name), "PD_OK", "[")
            check(program.call("delete", name), "PD_OK", "")
            known.pop(name, None)
            if not known:
                known["k"] = "abc"
                check(program.call("put", "k", "abc"), "PD_OK", "")
        print(f"{len(server.store.requests)} requests, each signed right")


main()
