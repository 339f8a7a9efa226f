#!/usr/bin/env python3
"""What a bucket may answer, as the user of the tool sees it: the exit code, a message that says what to do, and no secret. What passes
changes nothing; what is half there is never taken for whole.   Arguments: PERDURE"""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse

from answers import CLEAN, cut, hang_up, refusal, skewed
from server import SECRET, Server, etag

PERDURE, URL = os.path.abspath(sys.argv[1]), "s3://bucket/run"
SIZES = ["model.layers=1", "model.hidden=32", "model.heads=4", "model.kv_heads=2", "model.ffn=48", "model.context=32", "batch.sequences=4",
         "run.steps=2", "checkpoint.every=2", "layout.threads=1", "layout.ranks=2"]
STEP = "run/step-000000000002-1"
SHARD, RECORD = f"{STEP}/shard-00001.h5", f"{STEP}/commit.h5"


def perdure(environment, *arguments):
    done = subprocess.run([PERDURE, *arguments], capture_output=True, text=True, env={**CLEAN, **environment}, timeout=300)
    if SECRET in done.stdout + done.stderr or "secret" in done.stdout + done.stderr.replace("the secret key of", ""):
        raise SystemExit(f"{arguments}: a secret is in the output: {done.stdout}{done.stderr}")
    return done.returncode, done.stdout + done.stderr


def lists(handler, key, query):
    return not key and "list-type" in query


def of_shard(method):
    return lambda handler, key, query: key == SHARD and handler.command == method


def any_request(handler, key, query):
    return True


def with_length(bytes_said):
    return lambda handler, data: handler.answer(200, b"", [("ETag", etag(data))], bytes_said)


def changed(handler, data):
    """Another object than the one that was opened."""
    handler.refuse(412, "PreconditionFailed")


def turned(handler, data):
    """One bit in the middle of the answer is another one."""
    begin, end = (int(x) for x in handler.headers["range"].removeprefix("bytes=").split("-"))
    part = bytearray(data[begin:end + 1])
    part[len(part) // 2] ^= 1
    handler.answer(206, bytes(part), [("ETag", etag(data)), ("Content-Range", f"bytes {begin}-{end}/{len(data)}")])


def without(name):
    """A listing that does not have it yet."""
    def answer(handler, _):
        objects = handler.store.objects
        handler.store.objects = {key: data for key, data in objects.items() if not key.endswith(name)}
        handler.list_objects(dict(urllib.parse.parse_qsl(handler.path.partition("?")[2], keep_blank_values=True)))
        handler.store.objects = objects
    return answer


def answering(store, choose):
    """choose(handler, key, query) says who answers in the store's place: function(handler, object or None), or None."""
    def misbehave(handler, key, query, _):
        answer = choose(handler, key, query)
        if answer:
            answer(handler, handler.store.objects.get(key))
        return answer is not None
    store.misbehave = misbehave


# which requests, what answers, exit code, what the output has
REFUSED = [
    ("401", any_request, refusal(401, "Unauthorized"), 74, r"the credentials of AWS_ACCESS_KEY_ID are no longer valid"),
    ("403 list", lists, refusal(403, "AccessDenied"), 74, r"may not do this: allow them s3:ListBucket on arn:aws:s3:::bucket\b"),
    ("403 read", of_shard("GET"), refusal(403, "AccessDenied"), 74, r"may not do this: allow them s3:GetObject on arn:aws:s3:::bucket/\*"),
    ("key", any_request, refusal(403, "InvalidAccessKeyId"), 74, r"does not know the access key of AWS_ACCESS_KEY_ID"),
    ("clock", any_request, skewed, 74, r"s ahead of the server's: set it \(timedatectl set-ntp true\)"),
    ("bucket", any_request, refusal(404, "NoSuchBucket"), 78, r"has no bucket of this name: create it, or set AWS_ENDPOINT_URL_S3"),
    ("region", any_request, refusal(301, "PermanentRedirect", "<Region>eu-west-3</Region>"), 78, r"set AWS_REGION=eu-west-3"),
    ("lost", of_shard("GET"), refusal(404, "NoSuchKey"), 65, r"shard-00001\.h5: 4096 bytes at \d+: no such object"),
    ("412", of_shard("GET"), changed, 65, r"the object was replaced while it was open: run the command again"),
    ("416", of_shard("GET"), refusal(416, "InvalidRange"), 65, r"the object is shorter than when it was opened: run the command again"),
    ("checksum", of_shard("GET"), turned, 65, r"shard-00001\.h5: .*does not match its (checksum|digest)"),
    ("short", of_shard("HEAD"), with_length(5), 65, r"shard-00001\.h5: it has 5 bytes where the commit record says \d+"),
    ("long", of_shard("HEAD"), with_length(1 << 40), 65, r"shard-00001\.h5: it has 1099511627776 bytes where the commit record says \d+"),
    ("listing without a shard", lists, without("shard-00001.h5"), 65, r"shard-00001\.h5 is absent"),
    ("listing without the record", lists, without("commit.h5"), 0, r"^ok: step-000000000002-1: "),
]
PASSING = [refusal(429, "TooManyRequests"), refusal(500, "InternalError"), refusal(503, "SlowDown"), refusal(503, "ServiceUnavailable"),
           hang_up, cut, turned]


def refused(store, environment):
    for name, which, answer, code, words in REFUSED:
        answering(store, lambda handler, key, query: answer if which(handler, key, query) else None)
        found = perdure(environment, "ckpt", "verify", URL)
        if found[0] != code or not re.search(words, found[1]):
            raise SystemExit(f"{name}: expected {code} with {words!r}, found {found[0]}: {found[1]}")
        if "-v" in sys.argv:
            print(f"{name}: {found[0]}: {found[1]}")
    store.misbehave = None
    print(f"{len(REFUSED)} answers, each with its message")


def plain(text):
    return re.sub(r"in [0-9.]+ s|[0-9.]+ [KMG]?i?B/s", "TIME", text)


def passing(store, environment, whole):
    for fault in PASSING:
        met = set()

        def breaks(handler, key, query):
            """The first request of each kind; a read that is cut goes on with the rest."""
            kind = (handler.command, key, str(query), "" if fault in (cut, turned) else handler.headers.get("range"))
            if kind in met or (fault in (cut, turned) and "range" not in handler.headers):
                return None
            met.add(kind)
            return fault

        answering(store, breaks)
        found = perdure(environment, "ckpt", "verify", URL)
        if found[0] or plain(found[1]) != whole or not met:
            raise SystemExit(f"a fault that passes has changed what is said: {found}, without it {whole}")
    answering(store, lambda handler, key, query: refusal(503, "SlowDown") if key == RECORD else None)
    found = perdure(environment, "ckpt", "verify", URL)
    if found[0] not in (65, 74) or "HTTP 503" not in found[1]:
        raise SystemExit(f"a server that is never well: {found}")
    store.misbehave = None
    print(f"{len(PASSING)} faults that pass")


def doctor(store, environment):
    before = dict(store.objects)
    found = perdure(environment, "doctor", URL)
    if found[0] or not re.search(r"(?s)bucket +s3://bucket/run at http://.*conditional puts .*upload .*B/s.*download .*B/s", found[1]):
        raise SystemExit(f"doctor: {found}")
    store.excludes = False
    found = perdure(environment, "doctor", URL)
    store.excludes = True
    if found[0] == 0 or not re.search(r"(?s)MISSING +bucket .*8 of 8 simultaneous PUTs of one name with If-None-Match succeeded, but only one may", found[1]):
        raise SystemExit(f"doctor of a server whose puts do not exclude each other: {found}")
    for method, action in (("PUT", "s3:PutObject"), ("DELETE", "s3:AbortMultipartUpload"), ("POST", "s3:PutObject")):
        store.denied = (method,)
        found = perdure(environment, "doctor", URL)
        if found[0] != 74 or f"allow them {action} on arn:aws:s3:::bucket/*" not in found[1]:
            raise SystemExit(f"doctor where {method} is not allowed: {found}")
        store.denied = ()
        if method == "DELETE":  # what it may not remove stays
            store.objects, store.uploads = dict(before), {}
    if store.objects != before or store.uploads:
        raise SystemExit(f"doctor leaves {set(store.objects) - set(before)} {store.uploads}")
    print("doctor finds what is not allowed, and leaves nothing")


def bench(store, environment):
    before = dict(store.objects)
    arguments = ["bench", "objects", "s3://bucket/bench", "--bytes=32M", "--pairs=1", "--json"]
    found = perdure(environment, *arguments)
    if found[0] == 0 or "answered an unsigned request" not in found[1]:
        raise SystemExit(f"bench of a server that takes no unsigned requests: {found}")
    store.check_signatures = False
    found = perdure(environment, *arguments)
    result = json.JSONDecoder().raw_decode(found[1])[0] if not found[0] else {}  # a busy server brings warnings behind it
    if not result.get("upload_ratio") or not result.get("download_ratio") or store.objects != before:
        raise SystemExit(f"bench: {found}, and left {set(store.objects) - set(before)}")
    store.check_signatures = True
    print("bench leaves nothing")


def main():
    with tempfile.TemporaryDirectory(prefix="perdure-objects-") as folder, Server() as server:
        os.chdir(folder)
        with open("text.txt", "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 200)
        with open("run.yaml", "w") as f:
            f.write("run: {dir: run, seed: 3}\ndata: {train: text.txt}\n")
        made = perdure({}, "train", "run.yaml", *SIZES)
        if made[0]:
            raise SystemExit(made[1])
        for name in os.listdir(f"run/checkpoints/{os.path.basename(STEP)}"):
            with open(f"run/checkpoints/{os.path.basename(STEP)}/{name}", "rb") as f:
                server.store.objects[f"{STEP}/{name}"] = f.read()
        whole = perdure(server.environment(), "ckpt", "verify", URL)
        if whole[0]:
            raise SystemExit(whole[1])
        refused(server.store, server.environment())
        passing(server.store, server.environment(), plain(whole[1]))
        doctor(server.store, server.environment())
        bench(server.store, server.environment())


main()
