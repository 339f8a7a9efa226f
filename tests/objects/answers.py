#!/usr/bin/env python3
"""What a bucket may answer, and what comes of it: each refusal has its message, what passes is tried again, and what is wrong is never
taken for right.   Arguments: PROGRAM"""
import os
import socket
import subprocess
import sys

from server import Server, checksum

# No metadata service is asked, no file of the user is read.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
CLEAN.update({"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent", "PERDURE_PROGRESS": "off"})


class Program:
    def __init__(self, path, environment, bucket="bucket"):
        self.process = subprocess.Popen([path, bucket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**CLEAN, **environment})

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait()

    def call(self, *fields):
        self.process.stdin.write("\t".join(str(field) for field in fields) + "\n")
        self.process.stdin.flush()
        status, _, text = self.process.stdout.readline().rstrip("\n").partition("\t")
        return status, text


def check(found, status, text):
    if found[0] != status or text not in found[1]:
        raise SystemExit(f"expected {status} with {text!r}, found {found}")


def refusal(code, name, more=""):
    return lambda handler, _: handler.refuse(code, name, more)


def cut(handler, data):
    """Half of what was asked for, and the connection ends."""
    begin, end = (int(x) for x in handler.headers["range"].removeprefix("bytes=").split("-"))
    part = data[begin:end + 1]
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")
    handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    handler.wfile.write(part[:len(part) // 2])
    handler.close_connection = True


def hang_up(handler, _):
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def other_range(handler, data):
    handler.answer(206, data[1:5], [("Content-Range", f"bytes 1-4/{len(data)}")])


def range_as_whole(handler, data):
    """As rclone answers: the range that was asked for, with the status of a whole object."""
    begin, end = (int(x) for x in handler.headers["range"].removeprefix("bytes=").split("-"))
    handler.answer(200, data[begin:end + 1], [("Content-Range", f"bytes {begin}-{end}/{len(data)}")])


def too_long(handler, data):
    handler.answer(206, data + b"more", [("Content-Range", f"bytes 0-{len(data) + 3}/{len(data) + 4}")])


def skewed(handler, _):
    handler.send_response_only(403)
    handler.send_header("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
    body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


REFUSALS = [
    (refusal(401, "Unauthorized"), 2, "PD_IO", "no longer valid"),
    (refusal(403, "AccessDenied"), 1, "PD_IO", "may not do this: allow them s3:GetObject on arn:aws:s3:::bucket/*"),
    (refusal(403, "InvalidAccessKeyId"), 2, "PD_IO", "does not know the access key of AWS_ACCESS_KEY_ID"),
    (refusal(403, "SignatureDoesNotMatch"), 1, "PD_IO", "does not belong to its access key"),
    (skewed, 1, "PD_IO", "s ahead of the server's: set it"),
    (refusal(404, "NoSuchKey"), 1, "PD_NOT_FOUND", "no such object"),
    (refusal(404, "NoSuchBucket"), 1, "PD_INVALID", "has no bucket of this name"),
    (refusal(301, "PermanentRedirect", "<Region>eu-west-3</Region>"), 1, "PD_INVALID", "set AWS_REGION=eu-west-3"),
    (lambda handler, _: handler.answer(301, headers=[("x-amz-bucket-region", "eu-west-3")]), 1, "PD_INVALID", "set AWS_REGION=eu-west-3"),
    (refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"), 1, "PD_INVALID", "in region eu-west-3, not in eu-test-1"),
    (refusal(409, "Conflict"), 1, "PD_BUSY", "another request is writing this object"),
    (refusal(416, "InvalidRange"), 1, "PD_CORRUPT", "shorter than when it was opened"),
    (refusal(400, "Nonsense"), 1, "PD_IO", "HTTP 400 Nonsense: as the test asked"),
    (lambda handler, _: handler.answer(403, "<html>a proxy</html>"), 1, "PD_IO", "may not do this"),
    (other_range, 1, "PD_CORRUPT", "other bytes than the requested range"),
    (too_long, 1, "PD_CORRUPT", "more bytes than requested"),
]
# Calls that are not allowed, and what their message names.
ACTIONS = [("get\tkey\t0\t1", "s3:GetObject"), ("head\tkey", "s3:GetObject"), ("put\tkey\tx", "s3:PutObject"), ("begin\tkey", "s3:PutObject"),
           ("delete\tkey", "s3:DeleteObject"), ("list\tkey", "s3:ListBucket"), ("uploads\tkey", "s3:ListBucketMultipartUploads"),
           ("abort\tkey\t1", "s3:AbortMultipartUpload")]
PASSING = [refusal(429, "TooManyRequests"), refusal(500, "InternalError"), refusal(503, "SlowDown"), refusal(503, "ServiceUnavailable"),
           refusal(504, ""), cut, hang_up]


def refused(program, store):
    store.objects["key"] = b"0123456789"
    for fault, requests, status, text in REFUSALS:
        store.faults["key"], before = [fault] * requests, len(store.requests)
        check(program.call("get", "key", 0, 10), status, text)
        made = len(store.requests) - before
        if made != requests:
            raise SystemExit(f"{made} requests where {requests} were expected: {text}")
    store.faults["key"] = [range_as_whole]
    check(program.call("get", "key", 3, 4), "PD_OK", "3456")
    print(f"{len(REFUSALS)} refusals, each with its message")


def not_allowed(program, store):
    store.denied = ("GET", "HEAD", "PUT", "POST", "DELETE")
    for fields, action in ACTIONS:
        check(program.call(*fields.split("\t")), "PD_IO", f"may not do this: allow them {action} on arn:aws:s3:::bucket")
    store.denied = ()
    print(f"{len(ACTIONS)} calls that are not allowed name their action")


def changed_on_the_way(program, store):
    """A byte of what is sent changes: the server finds out by the checksum, and gets it again."""
    times = []

    def changes(handler, key, query, body):
        if handler.command != "PUT" or len(times) % 2:
            times.append(False)
            return False
        times.append(True)
        changed = bytes([body[0] ^ 1]) + body[1:]
        if handler.headers["x-amz-checksum-crc32"] == checksum(changed):
            raise SystemExit("a checksum of other bytes")
        handler.refuse(400, "BadDigest")
        return True

    store.misbehave = changes
    check(program.call("put", "changed", "0123456789"), "PD_OK", "")
    check(program.call("upload", "changed-parts", 2500, 1000), "PD_OK", "")
    store.misbehave = None
    if not any(times) or store.objects["changed"] != b"0123456789" or store.objects["changed-parts"] != b"\1" * 1000 + b"\2" * 1000 + b"\3" * 500:
        raise SystemExit("other bytes than those that were sent")
    store.faults["changed"] = [refusal(400, "BadDigest")] * 100
    check(program.call("put", "changed", "0"), "PD_IO", "answered s3:PutObject with HTTP 400 BadDigest")
    store.faults["changed"] = []
    print("bytes that change on the way are sent again")


def without_headers(program, store):
    def no_length(handler, _):
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True

    store.faults["key"] = [no_length]
    check(program.call("head", "key"), "PD_CORRUPT", "sent no Content-Length")
    store.faults["parts"] = [None, lambda handler, _: handler.answer(200)]
    check(program.call("upload", "parts", 10, 10), "PD_CORRUPT", "the server sent no ETag for a part")
    print("answers without their length or ETag are refused")


def deletes(program, store):
    """A thousand with one request; one by one where the server does not know it, or will not."""
    names = [f"many/{i}-<&>ä" for i in range(1000)]
    for fault, requests in ((None, 1), (refusal(501, "NotImplemented"), 1001), (refusal(400, "MalformedXML"), 1001)):
        store.objects.update({name: b"x" for name in [*names, "many/kept"]})
        if fault:
            store.faults[""] = [fault]
        before = len(store.requests)
        check(program.call("delete-many", " ".join(names)), "PD_OK", "")
        if [name for name in store.objects if name.startswith("many/")] != ["many/kept"] or len(store.requests) - before != requests:
            raise SystemExit(f"{len(store.requests) - before} requests where {requests} were expected")
    def one_is_left(handler, _):
        handler.answer(200, "<DeleteResult><Error><Key>many/b</Key><Code>AccessDenied</Code></Error></DeleteResult>")
    store.objects.update({"many/a": b"x", "many/b": b"x"})
    store.faults[""], store.faults["many/b"] = [one_is_left], [refusal(403, "AccessDenied")]
    check(program.call("delete-many", "many/a many/b"), "PD_IO", "s3://bucket/many/b: the credentials of AWS_ACCESS_KEY_ID may not do this: allow them s3:DeleteObject")
    print("1000 objects are deleted with one request, or one by one")


def passing(program, store):
    for fault in PASSING:
        store.faults["key"] = [fault, fault]
        check(program.call("get", "key", 0, 10), "PD_OK", "0123456789")
    ranges = [headers.get("range") for method, key, _, headers in store.requests if key == "key" and method == "GET"]
    if "bytes=5-9" not in ranges:
        raise SystemExit(f"a cut read begins again from its beginning: {ranges}")
    store.objects["many"] = b"x" * (1 << 16)
    store.faults["many"] = [cut] * 12  # more than there are tries, and each brings half of what is left
    check(program.call("get", "many", 0, 1 << 16), "PD_OK", "x" * (1 << 16))
    store.faults["key"] = [refusal(500, "InternalError")] * 100
    before = len(store.requests)
    check(program.call("get", "key", 0, 10), "PD_IO", "HTTP 500 InternalError")
    print(f"{len(PASSING)} faults that pass; one that does not is given up after {len(store.requests) - before} tries")
    store.faults["key"] = []


def joined(program, store):
    """Reads that lie one behind the other, or share bytes, are one request that ends at a multiple of 8 MiB, in whatever order they come; while
    enough others are under way the last one waits for the rest of it. The end of the object is found by the read that meets it."""
    data = store.objects["big"] = bytes(i * i % 251 for i in range(1 << 16)) * 320  # 20 MiB
    place, size = "s3://bucket/big", 1 << 19

    def total(count, shared):
        spans = [(i * size - (shared if i % 2 else 0), i * size if i % 4 == 3 and shared else (i + 1) * size) for i in range(count)]
        return sum((at + 1) * data[at] for begin, end in spans if end <= len(data) for at in range(begin, end)) % (1 << 64)

    def read(count, shared, failed=0, late=0):
        before = len(store.requests)
        check(program.call("pieces", place, size, count, shared, late), "PD_OK", f"{failed} ended, sum {total(count, shared)}")
        return sorted(tuple(int(x) for x in headers["range"][6:].split("-")) for method, _, _, headers in store.requests[before:] if method == "GET")

    if read(40, 0) != [(0, (1 << 23) - 1), (1 << 23, (1 << 24) - 1), (1 << 24, len(data) - 1)]:
        raise SystemExit(f"40 reads of 512 KiB are not joined to 8 MiB: {read(40, 0)}")
    data = store.objects["big"] = data * 2 + data[:1 << 23]  # 48 MiB
    if read(96, 0, late=8) != [(at << 23, (at + 1 << 23) - 1) for at in range(6)]:
        raise SystemExit(f"96 reads of 512 KiB, eight of them late, are not joined to 8 MiB: {read(96, 0, late=8)}")
    size = 640 << 10
    if [begin for begin, _ in read(72, 0)] != [at * size for at in (0, 12, 25, 38, 51, 64)]:  # those that cross begin the next
        raise SystemExit(f"requests do not end at multiples of 8 MiB: {read(72, 0)}")
    data, size = store.objects["big"][:20 << 20], 1 << 19
    store.objects["big"] = data
    if len(read(40, 4096)) != 10:  # four reads, and a gap
        raise SystemExit(f"reads that share bytes are not joined: {read(40, 4096)}")
    store.faults["big"] = [None, cut, cut, refusal(503, "SlowDown")]  # the first is the HEAD
    read(40, 4096)
    read(42, 0, failed=2)
    print("40 reads are 3 requests")
    store.faults["big"] = []


def conditions(program, store):
    check(program.call("put-absent", "once", "mine"), "PD_OK", "")
    check(program.call("put-absent", "once", "other"), "PD_EXISTS", "the object exists already")
    store.faults["conflict"] = [refusal(409, "ConditionalRequestConflict")]
    check(program.call("put-absent", "conflict", "x"), "PD_OK", "")  # nobody has it yet: again
    store.faults["conflict"] = [refusal(409, "Conflict")]
    check(program.call("put-absent", "conflict", "x"), "PD_EXISTS", "another request is writing this object")

    def lost(handler, _):  # done, and the answer is lost: the next try finds it there, and only a look tells whose it is
        handler.store.objects["lost"] = b"mine"
        hang_up(handler, _)

    store.faults["lost"] = [lost]
    check(program.call("put-absent", "lost", "mine"), "PD_EXISTS", "")
    check(program.call("get-if", "once", '"another"', 4), "PD_CORRUPT", "the object was replaced while it was open")
    if store.objects["once"] != b"mine":
        raise SystemExit("an object was overwritten")
    print("one of two conditional puts wins; an answer that is lost is no success")


def listings(program, store):
    store.objects.clear()
    store.faults.clear()
    for name in ("a/1", "a/2", "a/b/3", "a/b/4", "a/c/5", "a/d", "a/e e&<x>", "z"):
        store.objects[name] = b"x" * len(name)
    check(program.call("list", "a/"), "PD_OK", "[a/1 3][a/2 3][a/b/ 0][a/c/ 0][a/d 3][a/e e&<x> 9]")
    check(program.call("list-flat", ""), "PD_OK", "[a/1 3][a/2 3][a/b/3 5][a/b/4 5][a/c/5 5][a/d 3][a/e e&<x> 9][z 1]")
    for body, text in (("<html/>", "is not a listing"), ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "without a NextContinuationToken"),
                       ("<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>", "document type"), ("<ListBucketResult>", "line 1"),
                       (f"<ListBucketResult><Contents><Key>{'k' * 2000}</Key></Contents></ListBucketResult>", "an invalid Contents/Key"),
                       ("<ListBucketResult>" + "<a>" * 20, "too deep"),
                       ("<ListBucketResult><Contents><Size>-1</Size></Contents></ListBucketResult>", "an invalid Contents/Size")):
        store.faults["a/"] = [lambda handler, _, body=body: handler.answer(200, body)]
        check(program.call("list", "a/"), "PD_CORRUPT", text)
    endless = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    store.faults["a/"] = [lambda handler, _: handler.answer(200, endless)] * 3
    check(program.call("list", "a/"), "PD_CORRUPT", "does not end")
    print("listings in pages; seven that are none")


def uploads(program, store):
    store.faults["big"] = [refusal(503, "SlowDown")]
    check(program.call("upload", "big", 2500, 1000), "PD_OK", "")
    if store.objects["big"] != b"\1" * 1000 + b"\2" * 1000 + b"\3" * 500:
        raise SystemExit("an upload has other bytes")

    status, number = program.call("begin", "late")
    check((status, number), "PD_OK", "")
    check(program.call("uploads", "la"), "PD_OK", f"[late {number}]")
    check(program.call("abort", "late", number), "PD_OK", "")
    check(program.call("abort", "late", number), "PD_OK", "")
    check(program.call("uploads", ""), "PD_OK", "")
    store.faults["inside"] = [lambda handler, _: handler.answer(200, "<InitiateMultipartUploadResult/>")]
    check(program.call("upload", "inside", 10, 10), "PD_CORRUPT", "no UploadId")
    store.uploads["of rclone"] = ("inside", {})
    store.faults["inside"] = [lambda handler, _: handler.answer(200, "<InitiateMultipartUpload><UploadId>of rclone</UploadId></InitiateMultipartUpload>")]
    check(program.call("begin", "inside"), "PD_OK", "of rclone")
    check(program.call("abort", "inside", "of rclone"), "PD_OK", "")

    def completed_and_lost(handler, _):
        handler.on_post("late", {"uploadId": handler.path.partition("uploadId=")[2]}, b"")
        hang_up(handler, _)

    store.faults["late"] = [lambda handler, _: handler.on_post("late", {"uploads": ""}, b""),
                            lambda handler, _: handler.on_put("late", {"uploadId": list(store.uploads)[0], "partNumber": "1"}, b"x" * 10),
                            completed_and_lost]
    check(program.call("upload", "late", 10, 10), "PD_OK", "")
    print("uploads in parts")


def probes(program, store):
    store.objects.clear()
    store.uploads.clear()
    check(program.call("probe", "runs/mine"), "PD_OK", "rates")
    for method, action in (("GET", "s3:ListBucket"), ("PUT", "s3:PutObject"), ("DELETE", "s3:")):
        store.denied = (method,)
        check(program.call("probe", "runs/mine"), "PD_IO", f"may not do this: allow them {action}")
        store.denied = ()
    store.objects.clear()
    store.uploads.clear()
    store.excludes = False
    check(program.call("probe", ""), "PD_UNSUPPORTED", "8 of 8 simultaneous PUTs of one name with If-None-Match succeeded, but only one may")
    store.excludes = True
    if store.objects or store.uploads:
        raise SystemExit(f"a probe leaves {list(store.objects)} {list(store.uploads)}")
    print("a probe finds a server that does not exclude, and what it may not do")


def environments(path, server):
    for environment, text in (({}, "no credentials for a bucket: set AWS_ACCESS_KEY_ID"),
                              ({"AWS_ACCESS_KEY_ID": "x"}, "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not"),
                              ({"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "wrong"}, "does not belong to its access key")):
        with Program(path, {"AWS_ENDPOINT_URL_S3": server.url, "AWS_REGION": "eu-test-1", **environment}) as program:
            found = program.call("head" if not environment else "get", "key", 0, 1)
        if text not in found[1] or any(secret in found[1] for secret in ("wrong", "secret/")):
            raise SystemExit(f"expected {text!r}, found {found}")
    for environment in ({"AWS_ENDPOINT_URL_S3": "localhost:9000"}, {"AWS_ENDPOINT_URL_S3": "http://"}, {"AWS_PROFILE": "nobody"}):
        with Program(path, environment) as program:
            found = program.process.stdout.readline()
        if not found.startswith("PD_INVALID"):
            raise SystemExit(f"{environment}: {found}")
    print("environments that cannot do, each with its message")


def main():
    path = os.path.abspath(sys.argv[1])
    with Server() as server, Program(path, server.environment()) as program:
        for test in (refused, not_allowed, changed_on_the_way, without_headers, passing, joined, conditions, listings, uploads, deletes, probes):
            test(program, server.store)
        environments(path, server)


if __name__ == "__main__":
    main()
