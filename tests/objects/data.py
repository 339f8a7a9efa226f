#!/usr/bin/env python3
"""Training data in a bucket: each host fetches each file once, and the bits are those of the same files on a disk. What was killed, cut or
replaced in the middle is never believed. Against the server of this folder, or against SeaweedFS or moto.   Arguments: PERDURE [weed|moto]"""
import base64
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness  # noqa: E402
harness.PATIENCE = 200
import peers  # noqa: E402
from answers import CLEAN, cut, hang_up, refusal  # noqa: E402
from stores import opened  # noqa: E402

CONFIG = """
run: {seed: 3, steps: 6}
model: {family: llama, vocab: 256, context: 32, layers: 1, hidden: 32, heads: 4, kv_heads: 2, head_size: 8, ffn: 48}
batch: {sequences: 4, micro_batch: 1}
validation: {every: 3, sequences: 4}
checkpoint: {every: 3}
layout: {threads: 1}
"""
PREFIX = "some data"
LARGE = 20 << 20  # three parts


class Trial:
    def __init__(self, workspace, store):
        self.workspace, self.store, self.config = workspace, store, workspace.file("run.yaml", CONFIG)
        self.environment = {**CLEAN, **store.environment, "PERDURE_PROGRESS": "line:0"}
        source = random.Random(5)
        self.files = {f"tokens-{i}.bin": b"".join(source.randrange(200).to_bytes(2, "little") for _ in range(4000 + 500 * i)) for i in range(3)}
        large = bytearray(LARGE)
        large[::2] = source.randbytes(LARGE // 2)
        self.files["large.bin"] = bytes(large)
        self.files["validation.txt"] = harness.text_of(20000).encode()
        self.local = workspace.directory("local")
        os.makedirs(self.local)
        for name, data in self.files.items():
            self.put(name, data)
        self.cache = workspace.directory("cache")
        self.url = f"s3://bucket/{PREFIX}"

    def put(self, name, data):
        with open(os.path.join(self.local, name), "wb") as f:
            f.write(data)
        self.store.put(f"{PREFIX}/{name}", data)

    def command(self, directory, *more, place=None, ranks=2, cache=None):
        place = place or self.url
        return [self.workspace.perdure, "train", self.config, f"run.dir={directory}", f"data.train=['{place}/tokens-*.bin', '{place}/large.bin']",
                f"data.validation={place}/validation.txt", f"data.cache_dir={cache or self.cache}", f"layout.ranks={ranks}", *more]

    def train(self, directory, *more, expect=0, **how):
        found = subprocess.run(self.command(directory, *more, **how), env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        if found.returncode != expect:
            raise harness.Failure(f"{more}: exit {found.returncode}, expected {expect}\n{found.stdout}{found.stderr}")
        return found.stderr

    def bits(self, directory):
        return harness.losses(directory), self.workspace.state_digest(directory)

    def new(self, name):
        return self.workspace.directory(name)

    def gets(self, forget=True):
        """GETs of each object that our own server has had."""
        requests, found = self.store.server.store.requests, {}
        for method, key, _, _ in requests:
            if method == "GET" and key:
                found[os.path.basename(key)] = found.get(os.path.basename(key), 0) + 1
        if forget:
            requests.clear()
        return found


def expect(text, pattern, what):
    if not re.search(pattern, text):
        raise harness.Failure(f"{what}: no {pattern} in\n{text}")


ONCE = {"tokens-0.bin": 1, "tokens-1.bin": 1, "tokens-2.bin": 1, "large.bin": 3, "validation.txt": 1}


def same_bits(t, is_own):
    """One fetch for all ranks of the host, threads or processes; none at the second start."""
    quiet = t.new("quiet")
    t.train(quiet, place=t.local)
    t.quiet = t.bits(quiet)
    for transport in ("mpi", "local"):
        shutil.rmtree(t.cache, ignore_errors=True)
        run = t.new(transport)
        said = t.train(run, f"layout.transport={transport}", ranks=4)
        if t.bits(run) != t.quiet:
            raise harness.Failure(f"{transport}: other bits than of the files on a disk")
        expect(said, r"fetched 20\.\d MiB of 20\.\d MiB|fetched 20\.\d MiB in", transport)
        if is_own and t.gets() != ONCE:
            raise harness.Failure(f"{transport}: four ranks of a host make other requests than one: {t.gets()}")
    said = t.train(run, "run.steps=8")
    if "fetch" in said or (is_own and t.gets()):
        raise harness.Failure(f"a second start fetches again:\n{said}")
    print("files in a bucket: the bits of files on a disk; four ranks fetch them once, and the next start not at all")
    return run


def changed(t, run):
    """Another object is another file, and the run says which."""
    t.put("tokens-1.bin", t.files["tokens-1.bin"][:-2] + b"\1\0")
    said = t.train(run, "run.steps=9", expect=78)
    expect(said, r"some data/tokens-1\.bin changed since the checkpoint", "a replaced object")
    t.put("tokens-1.bin", t.files["tokens-1.bin"])
    said = t.train(run, "run.steps=9")
    expect(said, "resumed at step 8", "the object is back")
    print("an object that was replaced between two starts is noticed, and named")


def sizes(t):
    """What does not fit is refused with the numbers; what nobody uses makes way; what is in use does not."""
    said = t.train(t.new("small"), "data.cache_bytes=8M", expect=78)
    expect(said, r"the data in the bucket has 20\.\d MiB and data\.cache_bytes is 8\.00 MiB: .* set data\.cache_bytes=21M", "a small cache")
    cache = t.new("cache")
    other = [f"data.train={t.url}/large.bin", "data.cache_bytes=21M"]
    t.train(t.new("first"), *other, cache=cache)
    said = t.train(t.new("second"), f"data.train={t.url}/tokens-0.bin", "data.validation=", "data.validation_fraction=0.2", "data.cache_bytes=20M", cache=cache)
    expect(said, r"evicting a copy of 20\.0 MiB", "eviction")
    holder = subprocess.Popen(t.command(t.new("holder"), *other, "run.steps=1000000", cache=cache), env=t.environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for line in holder.stderr:
            if "fetched 20" in line and " in " in line:
                break
        said = t.train(t.new("third"), f"data.train=['{t.url}/tokens-1.bin', '{t.url}/tokens-2.bin']", "data.cache_bytes=20480K", cache=cache, expect=78)
        expect(said, r"copies of the data take .* more, copies that are in use take 20\.\d MiB, and data\.cache_bytes is 20\.0 MiB", "in use")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stderr.close()
    t.train(t.new("fourth"), f"data.train=['{t.url}/tokens-1.bin', '{t.url}/tokens-2.bin']", "data.cache_bytes=20480K", cache=cache)
    if len([name for name in os.listdir(cache) if name.startswith("use-")]):
        raise harness.Failure(f"left: {os.listdir(cache)}")
    print("a cache that is too small is refused with the numbers; unused copies are evicted, those in use are not")


def killed(t):
    """In the middle of a fetch: what is whole is kept, and half a file is not believed."""
    store = t.store.server.store
    for name in ("large.bin", "tokens-2.bin"):
        shutil.rmtree(t.cache)
        run, seen = t.new("killed"), []
        def hold(handler, key, query, body):
            if handler.command != "GET" or not key.endswith(name) or (name == "large.bin" and handler.headers.get("range", "").startswith("bytes=0-")):
                return False
            seen.append(key)
            time.sleep(20)
            return False
        store.misbehave = hold
        process = subprocess.Popen(t.command(run), env=t.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        harness.wait_for(lambda: seen, f"{name} is asked for")
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        store.misbehave = None
        harness.wait_until_gone(run)
        left = os.listdir(os.path.join(t.cache, "fetching"))
        if not left:
            raise harness.Failure("nothing was begun")
        t.train(run)
        if t.bits(run) != t.quiet:
            raise harness.Failure(f"killed at {name}: other bits")
        if os.path.exists(os.path.join(t.cache, "fetching")):
            raise harness.Failure("what the killed one left is still there")
    # Between two copies of a group: the first has its name, the others are fetched.
    shutil.rmtree(t.cache)
    run = t.new("killed")
    t.environment["PERDURE_FAULT"] = "data.fetched:2:kill"
    t.environment["PERDURE_FAULT_ONCE"] = t.workspace.file("once", "") + ".fired"
    t.gets()
    said = t.train(run)
    del t.environment["PERDURE_FAULT"], t.environment["PERDURE_FAULT_ONCE"]
    found = t.gets()
    if t.bits(run) != t.quiet or sorted(found.values()) != [1, 2, 2, 2, 6]:
        raise harness.Failure(f"killed after the first copy: {found}\n{said}")
    print("killed in the middle of a fetch: the next start fetches what is missing, same bits")


def misbehaving(t):
    """Refusals that pass, cut and lost connections, at random: fewer for an object than a request is tried again."""
    store, source, given = t.store.server.store, random.Random(harness.seed()), collections.Counter()
    faults = [refusal(500, "InternalError"), refusal(503, "SlowDown"), cut, hang_up, None, None, None, None]
    def misbehave(handler, key, query, body):
        fault = source.choice(faults)
        if not fault or not key or given[key] == 6 or (fault is cut and "range" not in handler.headers):
            return False
        given[key] += 1
        fault(handler, store.objects.get(key))
        return True
    for _ in range(3):
        shutil.rmtree(t.cache)
        given.clear()
        store.misbehave = misbehave
        run = t.new("misbehaving")
        t.train(run)
        store.misbehave = None
        if t.bits(run) != t.quiet:
            raise harness.Failure("a server that misbehaves: other bits")
    # The object is replaced while it is fetched.
    shutil.rmtree(t.cache)
    def replace(handler, key, query, body):
        if handler.command == "GET" and key.endswith("large.bin"):
            store.objects[key] = t.files["large.bin"][:-2] + b"\5\0"
        return False
    store.misbehave = replace
    said = t.train(t.new("replaced"), expect=65)
    expect(said, "large.bin: the object was replaced while it was open", "replaced while it is fetched")
    store.misbehave = None
    t.put("large.bin", t.files["large.bin"])
    for answer, code, pattern in ((refusal(403, "AccessDenied"), 74, r"may not do this: allow them s3:GetObject .*; without s3:ListBucket on the bucket an object that is absent is refused, too"),
                                  (refusal(404, "NoSuchKey"), 78, r"s3://bucket/some data/large\.bin: there is no such object")):
        def refuse(handler, key, query, body):
            if not key.endswith("large.bin"):
                return False
            answer(handler, None)
            return True
        store.misbehave = refuse
        expect(t.train(t.new("refused"), expect=code), pattern, "refused")
    store.misbehave = None
    expect(t.train(t.new("none"), f"data.train={t.url}/absent-*", expect=78), "no object matches s3://bucket/some data/absent-", "a glob without matches")
    print("a server that misbehaves: same bits; refusals say what to do")


def away(t):
    """Without the server a start goes on with the copies."""
    run = t.new("away")
    t.train(run, f"data.train={t.url}/large.bin")
    t.store.server.store.is_down = True
    said = t.train(run, f"data.train={t.url}/large.bin", "run.steps=8")
    t.store.server.store.is_down = False
    expect(said, r"continuing with the copies of the data in ", "the server is away")
    expect(said, "resumed at step 6", "the server is away")
    print("the server is away: a start goes on with the copies that it has, and warns")


def hosts(t):
    """Two hosts, each with a disk that the other does not see."""
    if not peers.can_pretend() or not shutil.which("mpirun"):
        print("skipped: hosts with disks of their own (mounting needs root, and mpirun)")
        return
    cluster = peers.Cluster(t.workspace, "hosts")
    config = t.workspace.file("hosts.yaml", CONFIG.replace("layout: {threads: 1}", "layout: {threads: 1, transport: mpi}") +
                              f"data: {{train: ['{t.url}/tokens-*.bin', '{t.url}/large.bin'], validation: '{t.url}/validation.txt', "
                              f"cache_dir: {cluster.root}/local/cache}}\n")
    log = cluster.run + ".log"
    t.gets()
    environment = {key: value for key, value in t.environment.items() if key.startswith(("AWS_", "HOME"))}
    process = cluster.start(config, [0, 1, 1], log, 0, **environment)
    if process.wait(timeout=harness.PATIENCE) != 0:
        raise harness.Failure(f"exit {process.returncode}\n{harness.read(log)}")
    found = t.gets()
    if found != {name: 2 * count for name, count in ONCE.items()} or harness.losses(cluster.run) != t.quiet[0]:
        raise harness.Failure(f"two hosts: {found}\n{harness.read(log)}")
    print("two hosts, three ranks: each host fetches each file once, same bits")


def commands(t):
    """What reads data files says the same of one in a bucket. A Megatron pair and a tokenizer come along."""
    perdure, environment = t.workspace.perdure, {**t.environment, "XDG_CACHE_HOME": t.new("home"), "PERDURE_PROGRESS": "off", "PERDURE_LOG": "warn"}
    def said(*arguments, code=0):
        found = subprocess.run([perdure, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False)
        if found.returncode != code:
            raise harness.Failure(f"{arguments}: exit {found.returncode}\n{found.stdout}{found.stderr}")
        return found.stdout
    text, pair = os.path.join(t.local, "validation.txt"), os.path.join(t.local, "pair")
    said("data", "pack", text, "--format=megatron", f"--output={pair}")
    for name in ("pair.bin", "pair.idx"):
        with open(os.path.join(t.local, name), "rb") as f:
            t.store.put(f"{PREFIX}/{name}", f.read())
    for name in ("pair", "pair.bin", "pair.idx", "tokens-1.bin", "validation.txt"):
        here, there = (json.loads(said("data", "inspect", f"{place}/{name}", "--json"))[0] for place in (t.local, t.url))
        for found in (here, there):
            del found["path"]
            found["index"] = bool(found["index"])
        if here != there:
            raise harness.Failure(f"data inspect {name}: {here} {there}")
    run = t.new("evaluated")
    t.train(run)
    results = [json.loads(said("eval", run, f"--data={place}/tokens-0.bin", "--windows=4", "--threads=1", "--json")) for place in (t.local, t.url)]
    if len({result["loss"] for result in results}) != 1 or results[1]["data"] != f"{t.url}/tokens-0.bin":
        raise harness.Failure(f"eval: {results}")
    said("plan", t.config, f"data.train={t.url}/tokens-*.bin", f"data.validation={t.url}/validation.txt", "run.dir=x", "--world=2")
    for place in (t.local, t.url):
        said("data", "pack", f"{place}/validation.txt", text, f"{place}/validation.tx*", f"--output=made-{place[:2].strip('/')}.bin")
    if open("made-s3.bin", "rb").read() != open("made-t.bin", "rb").read():
        raise harness.Failure("data pack makes other tokens of text in a bucket")
    print("data pack, inspect and eval say the same of files in a bucket")


def crc(data, polynomial, bits):
    """Of the reflected polynomial, in base64."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    found = 2**bits - 1
    for byte in data:
        found = table[(found ^ byte) & 255] ^ found >> 8
    return base64.b64encode((found ^ 2**bits - 1).to_bytes(bits // 8, "big")).decode()


def inspect(t, name):
    environment = {**t.environment, "XDG_CACHE_HOME": t.new("home"), "PERDURE_PROGRESS": "off"}
    shutil.rmtree(environment["XDG_CACHE_HOME"], ignore_errors=True)
    found = subprocess.run([t.workspace.perdure, "data", "inspect", f"{t.url}/{name}"], env=environment, capture_output=True, text=True, timeout=200, check=False)
    return found.returncode, found.stdout + found.stderr


def sums_of_others(t):
    """Objects with a checksum, whole and in parts, as SeaweedFS and moto keep it."""
    data, client = random.Random(9).randbytes(9 << 20), t.store.client
    for kind in ("CRC32", "SHA256"):
        client.put_object(Bucket="bucket", Key=f"{PREFIX}/{kind}.bin", Body=data, ChecksumAlgorithm=kind)
    parts, name = [], {"Bucket": "bucket", "Key": f"{PREFIX}/parts.bin"}
    upload = client.create_multipart_upload(**name, ChecksumAlgorithm="CRC32")["UploadId"]
    for number, part in enumerate((data[:6 << 20], data[6 << 20:]), 1):
        sent = client.upload_part(**name, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32")
        parts.append({"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]})
    client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": parts})
    for name in ("CRC32.bin", "SHA256.bin", "parts.bin"):
        if not client.head_object(Bucket="bucket", Key=f"{PREFIX}/{name}", ChecksumMode="ENABLED").keys() & {"ChecksumCRC32", "ChecksumSHA256"}:
            raise harness.Failure(f"{name}: the server keeps no checksum")
        if (found := inspect(t, name))[0] != 0:
            raise harness.Failure(f"{name}: {found}")
    print("objects with checksums, whole and in parts, are fetched")


def sums(t):
    """A checksum that the server keeps of a whole object is compared with what came. One of the checksums of parts is not."""
    store, key = t.store.server.store, f"{PREFIX}/summed.bin"
    data = random.Random(9).randbytes((8 << 20) + 1000)  # two parts
    right = [("x-amz-checksum-crc32", crc(data, 0xEDB88320, 32)), ("x-amz-checksum-crc32c", crc(data, 0x82F63B78, 32)),
             ("x-amz-checksum-crc64nvme", crc(data, 0x9A6C9329AC4BC9B5, 64)), ("x-goog-hash", f"crc32c={crc(data, 0x82F63B78, 32)},md5=x")]
    fetch = lambda: inspect(t, "summed.bin")
    store.objects[key] = data
    for name, value in right:
        store.sums[key] = [(name, value)]
        if (found := fetch())[0] != 0:
            raise harness.Failure(f"{name}: {found}")
        store.objects[key] = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
        code, said = fetch()
        expect(said, r"summed\.bin: its bytes do not have the CRC-\S+ that the server keeps of it: run the command again", name)
        if code != 65:
            raise harness.Failure(f"{name}: exit {code}\n{said}")
        store.sums[key] = [(name, value.replace("=", "=-", 1))]  # of the sums of parts
        if (found := fetch())[0] != 0:
            raise harness.Failure(f"{name} of parts: {found}")
        store.objects[key] = data
    etag, store.etag = store.etag, lambda data: '"of-2"'
    for headers, expected in (([(right[0][0], right[2][1][:6] + "==")], 0),  # of the sums of two parts: the server does not say so
                              ([(right[0][0], right[1][1]), ("x-amz-checksum-type", "FULL_OBJECT")], 65), ([(right[2][0], "AAAAAAAAAAA=")], 65)):
        store.sums[key] = headers
        if (found := fetch())[0] != expected:
            raise harness.Failure(f"{headers} of an object in parts: {found}")
    store.etag = etag
    print("a checksum that the server keeps of an object is compared with the bytes that came")


TOKENIZER = """{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
"model": {"type": "BPE", "vocab": {"I": 0, "n": 1, "In": 2}, "merges": ["I n"]}}"""


def tokenizer(t):
    """It comes with the tokens, and goes into the bucket beside the checkpoints: whoever has nothing else can read the model."""
    source, near = random.Random(7), t.new("near")
    text = t.workspace.file("In.txt", "".join(source.choice(("In", "I", "n")) for _ in range(20000)))
    made = os.path.join(t.local, "packed.bin")
    environment = {**t.environment, "XDG_CACHE_HOME": t.new("home"), "PERDURE_LOG": "error"}
    def said(*arguments):
        found = subprocess.run([t.workspace.perdure, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False)
        if found.returncode:
            raise harness.Failure(f"{arguments}: exit {found.returncode}\n{found.stdout}{found.stderr}")
        return found.stdout
    said("data", "pack", text, f"--tokenizer={t.workspace.file('tokenizer.json', TOKENIZER)}", f"--output={made}")
    os.unlink(os.path.join(t.workspace.path, "tokenizer.json"))
    for name in ("packed.bin", "packed.bin.tokenizer.json"):
        with open(os.path.join(t.local, name), "rb") as f:
            t.store.put(f"{PREFIX}/{name}", f.read())
    run, url = t.new("tokenized"), "s3://bucket/tokenized/run"
    t.train(run, f"data.train={t.url}/packed.bin", "data.validation=", "data.validation_fraction=0.2",
            f"checkpoint.tiers=[{{dir: {near}/checkpoints}}, {{dir: '{url}'}}]")
    shutil.copy(os.path.join(run, "tokenizer.json"), near)
    for arguments in (("sample", "{}", "--prompt=In", "--count=20", "--threads=1"), ("eval", "{}", f"--data={text}", "--windows=4", "--threads=1", "--json")):
        here, there = (said(*(word.replace("{}", place) for word in arguments)) for place in (near, url))
        if re.sub('"seconds":[^,}]*', "", here) != re.sub('"seconds":[^,}]*', "", there):
            raise harness.Failure(f"{arguments}: {here} {there}")
    if f"it is {url}/tokenizer.json" not in (shown := said("ckpt", "show", url)):
        raise harness.Failure(shown)
    newest = sorted(name for name in os.listdir(f"{near}/checkpoints") if name.startswith("step-"))[-1]
    if said("sample", f"{url}/{newest}", "--prompt=In", "--count=20", "--threads=1") != said("sample", near, "--prompt=In", "--count=20", "--threads=1"):
        raise harness.Failure("sample of one checkpoint in the bucket")
    print("a tokenizer comes with the tokens, and goes into the bucket beside the checkpoints")


def main():
    kind = (sys.argv[2:] or ["own"])[0]
    is_own = kind == "own"
    with harness.Workspace(sys.argv[1]) as workspace, opened(kind) as store:
        os.chdir(workspace.path)
        trial = Trial(workspace, store)
        if not is_own:
            sums_of_others(trial)
        if kind == "moto":
            return
        run = same_bits(trial, is_own)
        changed(trial, run)
        commands(trial)
        tokenizer(trial)
        if is_own:
            sums(trial)
            sizes(trial)
            killed(trial)
            misbehaving(trial)
            away(trial)
            hosts(trial)


if __name__ == "__main__":
    main()
