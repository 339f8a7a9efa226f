"""An object store for tests: buckets in memory, Signature Version 4 verified by its own reading of the specification, and faults that a
test asks for. Keys, conditions, ranges, listings in pages of three, multipart uploads, checksums."""
import base64
import functools
import hashlib
import hmac
import html
import http.server
import re
import socket
import threading
import urllib.parse
import zlib
from xml.sax.saxutils import escape

ACCESS, SECRET = "AKIDTEST", "secret/with+signs"
PAGE = 3


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature(handler, words):
    """What the signature of this request has to be, by the headers that it says it has signed."""
    credential = words["Credential"].split("/")
    scope = "/".join(credential[1:])
    target = handler.path.partition("?")
    pairs = sorted(tuple(pair.partition("=")[::2]) for pair in target[2].split("&")) if target[2] else []
    query = "&".join(f"{name}={value}" for name, value in pairs)
    signed = words["SignedHeaders"].split(";")
    headers = "".join(f"{name}:{' '.join(handler.headers[name].split())}\n" for name in signed)
    canonical = "\n".join([handler.command, target[0], query, headers, ";".join(signed), handler.headers["x-amz-content-sha256"]])
    date = handler.headers["x-amz-date"]
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + SECRET).encode()
    for word in (date[:8], *credential[2:5]):
        key = sign(key, word)
    return sign(key, text).hex()


class Store:
    """What the server has, and what it does next."""

    def __init__(self):
        self.lock = threading.Lock()
        self.objects, self.uploads = {}, {}
        self.faults = {}  # key: [function(handler, object or None) that answers, ...]; the last one stays where it is "for ever"
        self.requests = []
        self.check_signatures = self.excludes = True  # excludes: If-None-Match is kept
        self.denied = ()  # methods
        self.is_down = False  # every connection ends without an answer
        self.etag = etag
        self.checks = True  # checksums
        self.sums = {}  # key: headers of a HEAD that asks for checksums
        self.misbehave = None  # function(handler, key, query, body), which may answer itself: True

    def fault(self, key):
        with self.lock:
            left = self.faults.get(key)
            return left.pop(0) if left else None


def checksum(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


class Parts:
    """The bytes of an upload, which are not copied together."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return sum(map(len, self.parts))

    def __getitem__(self, place):
        begin, end, _ = place.indices(len(self))
        found, at = [], 0
        for part in self.parts:
            found.append(memoryview(part)[max(begin - at, 0):max(end - at, 0)])
            at += len(part)
        return b"".join(found)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second write of an answer waits 40 ms for an acknowledgement
    store = None

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", headers=(), length=None):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code, name, more=""):
        self.answer(code, f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>as the test asked</Message>{more}</Error>")

    def refuses_signature(self):
        if not self.store.check_signatures:
            return False
        authorization = self.headers.get("authorization", "")
        words = dict(word.strip().split("=", 1) for word in authorization.partition(" ")[2].split(",") if "=" in word)
        if not authorization.startswith("AWS4-HMAC-SHA256 ") or words.get("Credential", "/").split("/")[0] != ACCESS:
            self.refuse(403, "InvalidAccessKeyId")
            return True
        if words["Signature"] != signature(self, words):
            self.refuse(403, "SignatureDoesNotMatch")
            return True
        return False

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def handle_any(self):
        if self.store.is_down:
            self.hang_up()
            return
        body = self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        key = urllib.parse.unquote(path).split("/", 2)[2] if path.count("/") > 1 else ""
        query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.store.requests.append((self.command, key, query, dict(self.headers)))
        if self.refuses_signature():
            return
        if self.command in self.store.denied:
            self.refuse(403, "AccessDenied")
            return
        fault = self.store.fault(key if key else query.get("prefix", ""))
        if fault:
            fault(self, self.store.objects.get(key))
            return
        if self.store.misbehave and self.store.misbehave(self, key, query, body):
            return
        if body and self.store.checks and self.headers.get("x-amz-checksum-crc32", checksum(body)) != checksum(body):
            self.refuse(400, "BadDigest")
            return
        with self.store.lock:
            getattr(self, "on_" + self.command.lower())(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def on_head(self, key, query, body):
        data = self.store.objects.get(key)
        sums = self.store.sums.get(key, []) if self.headers.get("x-amz-checksum-mode") == "ENABLED" else []
        self.answer(404 if data is None else 200, b"", [("ETag", self.store.etag(data or b"")), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"), *sums], len(data or b""))

    def on_get(self, key, query, body):
        if not key:
            self.list_uploads(query) if "uploads" in query else self.list_objects(query)
            return
        data = self.store.objects.get(key)
        if data is None:
            self.refuse(404, "NoSuchKey")
        elif self.headers.get("if-match", self.store.etag(data)) != self.store.etag(data):
            self.refuse(412, "PreconditionFailed")
        elif "range" in self.headers:
            begin, end = (int(x) for x in self.headers["range"].removeprefix("bytes=").split("-"))
            if begin >= len(data):
                self.refuse(416, "InvalidRange")
                return
            part = data[begin:end + 1]
            self.answer(206, part, [("ETag", self.store.etag(data)), ("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")])
        else:
            self.answer(200, data[:], [("ETag", self.store.etag(data))])

    def list_objects(self, query):
        prefix, delimiter, found = query.get("prefix", ""), query.get("delimiter"), {}
        for key, data in sorted(self.store.objects.items()):
            if not key.startswith(prefix):
                continue
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if cut < 0 else key[:cut + 1]
            found.setdefault(name, None if cut >= 0 else len(data))
        names = [name for name in found if name > query.get("continuation-token", "")]
        text = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" if found[name] is None else
                       f"<Contents><Key>{escape(name)}</Key><Size>{found[name]}</Size></Contents>" for name in names[:PAGE])
        more = len(names) > PAGE
        token = f"<NextContinuationToken>{escape(names[PAGE - 1])}</NextContinuationToken>" if more else ""
        self.answer(200, f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{text}</ListBucketResult>")

    def list_uploads(self, query):
        text = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{number}</UploadId></Upload>"
                       for number, (key, _) in self.store.uploads.items() if key.startswith(query.get("prefix", "")))
        self.answer(200, f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{text}</ListMultipartUploadsResult>")

    def on_put(self, key, query, body):
        if "uploadId" in query:
            self.store.uploads[query["uploadId"]][1][int(query["partNumber"])] = body
        elif self.store.excludes and self.headers.get("if-none-match") == "*" and key in self.store.objects:
            self.refuse(412, "PreconditionFailed")
            return
        elif "x-amz-copy-source" in self.headers:
            body = self.store.objects[key] = self.store.objects[urllib.parse.unquote(self.headers["x-amz-copy-source"]).split("/", 2)[2]]
            self.answer(200, f"<CopyObjectResult><ETag>{self.store.etag(body)}</ETag></CopyObjectResult>")
            return
        else:
            self.store.objects[key] = body
        self.answer(200, b"", [("ETag", self.store.etag(body))])

    def delete_many(self, body):
        """As its specification has it: quiet, so only what was not deleted is in the answer."""
        for name in re.findall(r"<Object><Key>(.*?)</Key></Object>", body.decode()):
            self.store.objects.pop(html.unescape(name), None)
        self.answer(200, "<DeleteResult></DeleteResult>")

    def on_post(self, key, query, body):
        if "delete" in query:
            self.delete_many(body)
        elif "uploads" in query:
            number = str(len(self.store.requests))
            self.store.uploads[number] = (key, {})
            self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        elif query["uploadId"] not in self.store.uploads:
            self.refuse(404, "NoSuchUpload")
        else:
            parts = self.store.uploads.pop(query["uploadId"])[1]
            whole = Parts([parts[number] for number in sorted(parts)])
            self.store.objects[key] = whole[:] if self.store.checks else whole
            self.answer(200, "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def on_delete(self, key, query, body):
        gone = self.store.uploads.pop(query["uploadId"], None) if "uploadId" in query else self.store.objects.pop(key, None)
        if gone is None and "uploadId" in query:
            self.refuse(404, "NoSuchUpload")
        else:
            self.answer(204)


@functools.lru_cache(maxsize=256)
def etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


class Server:
    def __enter__(self):
        self.store = Store()
        handler = type("Handler", (Handler,), {"store": self.store})
        listener = type("Listener", (http.server.ThreadingHTTPServer,), {"request_queue_size": 128})  # else connections wait a second
        self.http = listener(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # of clients that are killed
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()

    def environment(self):
        return {"AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": "eu-test-1", "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
