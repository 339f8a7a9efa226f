#!/usr/bin/env python3
"""Two launches of one prefix save the same step at once: exactly one of them commits it, 50 times (1,000 with PERDURE_TEST_SCALE of 20).
Damaged shards are not sent. And what an upload takes of memory, whatever the size of the shard.   Arguments: PROGRAM PERDURE"""
import glob
import os
import random
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness  # noqa: E402
from answers import CLEAN, hang_up, refusal  # noqa: E402
from server import Server, etag  # noqa: E402

MODEL = ("model: {{family: llama, vocab: 256, context: 64, layers: {layers}, hidden: {hidden}, heads: 16, kv_heads: 16, head_size: {head}, "
         "ffn: {ffn}}}\n")
CONFIG = ("run: {{seed: 3, steps: 1}}\n" + MODEL + "data: {{train: [{{path: {data}}}], validation_fraction: 0}}\n"
          "batch: {{sequences: 1, micro_batch: 1, context: 16}}\nvalidation: {{every: 0}}\nlayout: {{ranks: 1, threads: 2}}\n")


class Launch:
    def __init__(self, program, server, megabytes=8):
        self.process = subprocess.Popen([program, str(megabytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**CLEAN, **server.environment()})

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, *fields):
        self.process.stdin.write("\t".join(fields) + "\n")
        self.process.stdin.flush()

    def answer(self):
        status, _, text = self.process.stdout.readline().rstrip("\n").partition("\t")
        return status, text

    def peak_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def both(launches, *fields):
    for launch in launches:
        launch.ask(*fields)
    return [launch.answer() for launch in launches]


def race(program, server, checkpoint, count):
    with Launch(program, server) as one, Launch(program, server) as other:
        fences = []
        for i in range(count):
            url = f"s3://bucket/race-{i}"
            opened = both((one, other), "open", url)
            saved = both((one, other), "save", checkpoint)
            records = [key for key in server.store.objects if key.startswith(f"race-{i}/") and key.endswith("/commit.h5")]
            if [status for status, _ in opened] != ["PD_OK"] * 2 or sorted(status for status, _ in saved) != ["PD_BUSY", "PD_OK"] or len(records) != 1:
                raise harness.Failure(f"race {i}: {opened} {saved} {records}")
            if next(text for status, text in saved if status == "PD_OK") not in records[0]:
                raise harness.Failure(f"race {i}: {saved} {records}")
            fences.append(records[0].rsplit("-", 1)[1][0])
            both((one, other), "close")
            server.store.objects.clear()
    print(f"{count} races of two launches: each step was committed by exactly one of them")


def overtake(program, server, checkpoint, count):
    """A launch starts while another one saves. What that says it has committed is there, whole, and stays; the new one takes nothing else."""
    with Launch(program, server) as one, Launch(program, server) as other:
        lost = 0
        for i in range(count):
            url = f"s3://bucket/overtake-{i}"
            one.ask("open", url)
            one.answer()
            one.ask("save", checkpoint)
            time.sleep(i % 20 * 0.001)
            other.ask("open", url)
            saved, opened = one.answer(), other.answer()
            files = sorted(key.rsplit("/", 1)[1] for key in server.store.objects if "/step-" in key)
            if opened[0] != "PD_OK" or saved[0] not in ("PD_OK", "PD_BUSY") or (saved[0] == "PD_OK" and files != ["commit.h5", "index.h5", "shard-00000.h5"]):
                raise harness.Failure(f"save beside a start {i}: {saved} {opened}, {files} are there")
            lost += saved[0] == "PD_BUSY"
            both((one, other), "close")
            server.store.objects.clear()
    print(f"{count} starts beside a save: {lost} took over before it was committed, and what was committed is whole")


def given_up(program, server, checkpoint):
    """What an attempt of this launch has begun and given up goes with its next pruning."""
    with Launch(program, server) as launch:
        launch.ask("open", "s3://bucket/given-up")
        launch.answer()
        server.store.uploads["begun"] = ("given-up/step-000000000009-1/shard-00000.h5", {})
        server.store.objects["given-up/step-000000000009-1/shard-00001.h5"] = b"half"
        for word in ("save", "prune"):
            launch.ask(word, checkpoint)
            found = launch.answer()
            if found[0] != "PD_OK":
                raise harness.Failure(f"{word}: {found}")
    if server.store.uploads or any("step-000000000009" in key for key in server.store.objects):
        raise harness.Failure(f"{list(server.store.uploads)} {list(server.store.objects)} stay")
    server.store.objects.clear()
    print("what was given up is removed")


def records(program, server, checkpoint):
    """What the server answers to the record: it is committed once, by whom the object says."""
    store = server.store

    def put_and(answer, data=None):
        def put(handler, _):
            store.objects[key] = data or handler.body
            answer(handler, _)
        return put

    conflict, missing = refusal(409, "Conflict"), None
    cases = [("it is being written all the time", [missing] + [conflict, missing] * 4, "PD_IO", "another request is writing this object: try again"),
             ("another one has it", [missing, put_and(refusal(412, "PreconditionFailed"), b"other")], "PD_BUSY", "another launch has put s3://bucket/"),
             ("it is there, and the answer is lost", [missing, put_and(hang_up)], "PD_OK", ""),
             ("it is there, and nothing can be read", [missing, put_and(refusal(403, "AccessDenied")), refusal(403, "AccessDenied")], "PD_IO", "s3:PutObject")]
    with Launch(program, server) as launch:
        for number, (name, faults, status, text) in enumerate(cases):
            launch.ask("open", f"s3://bucket/record-{number}")
            launch.answer()
            key = f"record-{number}/step-000000000001-1/commit.h5"
            store.faults[key] = list(faults)
            launch.ask("save", checkpoint)
            found = launch.answer()
            if found[0] != status or text not in found[1] or store.faults[key]:
                raise harness.Failure(f"{name}: {found}")
            if status == "PD_IO":  # the next save puts it, or finds that it is there
                sent = len(store.requests)
                launch.ask("save", checkpoint)
                found, sent = launch.answer(), [key for method, key, _, _ in store.requests[sent:] if method == "PUT"]
                if found[0] != "PD_OK" or (sent != []) != ("written" in name):
                    raise harness.Failure(f"after {name}: {found}, {sent}")
            launch.ask("close")
            launch.answer()
    store.objects.clear()
    print(f"{len(cases)} answers to a record")


def fences(program, server, checkpoint):
    """A fence that the bucket has lost, and one that a listing does not have yet."""
    def hide(handler, key, query, body):
        objects = server.store.objects
        is_listing = not key and "list-type" in query
        if is_listing:
            server.store.objects = {name: data for name, data in objects.items() if "fence" not in name}
            handler.list_objects(query)
            server.store.objects = objects
        return is_listing

    for prefix, misbehave, text in (("lost", None, "fence-1 of this launch was removed"), ("late", hide, "another launch has taken over")):
        if misbehave:
            server.store.objects[f"{prefix}/fence-3"] = b"of another launch"
        server.store.misbehave = misbehave
        with Launch(program, server) as launch:
            launch.ask("open", f"s3://bucket/{prefix}")
            opened = launch.answer()
            server.store.misbehave = None
            if not misbehave:
                del server.store.objects[f"{prefix}/fence-1"]
            launch.ask("save", checkpoint)
            found = launch.answer()
        if opened[0] != "PD_OK" or text not in found[1] or any("commit" in key for key in server.store.objects):
            raise harness.Failure(f"{prefix}: {opened} {found}")
        server.store.objects.clear()
    print("a lost fence and one that is listed late end the save")


def damage(program, server, checkpoint, chooser, count):
    """A bit of the shard is turned before it is sent, in its first and last part, and where two parts meet in a block: nothing is sent for right."""
    path, part = f"{checkpoint}/shard-00000.h5", 8 << 20
    bytes_, meet = os.path.getsize(path), [number * part + shift for number in (1, 2) for shift in (-1, 0, 40000, -40000)]
    with Launch(program, server, 64) as launch, open(path, "r+b") as shard:
        launch.ask("open", "s3://bucket/damage")
        launch.answer()
        for at in [*meet, 9000, bytes_ - part // 2, *(chooser.randrange(bytes_) for _ in range(count))]:
            shard.seek(at)
            whole = shard.read(1)
            for byte, expect in ((bytes([whole[0] ^ 1 << chooser.randrange(8)]), "PD_CORRUPT"), (whole, "PD_OK" if at == meet[0] else None)):
                shard.seek(at)
                shard.write(byte)
                shard.flush()
                if expect is None:
                    continue
                launch.ask("save", checkpoint)
                found = launch.answer()
                has_record = any(key.endswith("commit.h5") for key in server.store.objects)
                if found[0] != expect or has_record != (expect == "PD_OK") or server.store.uploads:
                    raise harness.Failure(f"byte {at} of {bytes_}: {found}, {list(server.store.objects)}")
                server.store.objects = {key: data for key, data in server.store.objects.items() if "fence" in key}
    server.store.objects.clear()
    print(f"{len(meet) + 2 + count} damaged shards are not sent")


def misbehaving(chooser):
    """One request of five gets a refusal, waits, is cut off before it is served, or after."""
    def misbehave(handler, key, query, body):
        kind = chooser.choices(("500", "503", "409", "late", "before", "after", "well"), (3, 3, 2, 4, 4, 4, 80))[0]
        if kind == "late":
            time.sleep(chooser.uniform(0, 0.5))
        if kind in ("late", "well"):
            return False
        if kind == "after":
            with handler.store.lock:
                handler.wfile = open(os.devnull, "wb")
                getattr(handler, "on_" + handler.command.lower())(key, query, body)
        if kind in ("before", "after"):
            handler.hang_up()
        else:
            code = 409 if kind == "409" and handler.command == "PUT" else 503 if kind == "503" else 500
            handler.refuse(code, {500: "InternalError", 503: "SlowDown", 409: "ConditionalRequestConflict"}[code])
        return True
    return misbehave


def parts(program, server, checkpoint, count):
    """Uploads in parts to a server that misbehaves at random: what is said to be there has every byte."""
    with open(f"{checkpoint}/shard-00000.h5", "rb") as f:
        shard = f.read()
    server.store.misbehave = misbehaving(random.Random(harness.seed()))
    attempts = 0
    with Launch(program, server, 32) as launch:
        for i in range(count):
            found = None
            while found != "PD_OK":
                launch.ask("open", f"s3://bucket/parts-{i}")
                found = launch.answer()[0]
            found = None
            while found != "PD_OK":
                launch.ask("save", checkpoint)
                found, text = launch.answer()
                attempts += 1
                if found not in ("PD_OK", "PD_IO"):
                    raise harness.Failure(f"{found}: {text}")
            name = f"parts-{i}/{text}"
            if server.store.objects.get(f"{name}/shard-00000.h5") != shard or f"{name}/commit.h5" not in server.store.objects:
                raise harness.Failure(f"{name}: {[(key, len(data)) for key, data in server.store.objects.items()]}, the shard has {len(shard)} bytes")
            launch.ask("close")
            launch.answer()
            server.store.objects.clear()
            server.store.uploads.clear()
    server.store.misbehave = None
    print(f"{count} uploads of {len(shard) >> 20} MiB in parts to a server that misbehaves: right after {attempts} attempts")


def memory(program, server, workspace, config, hidden):
    """Shards of two sizes, sent from 64 MiB: the larger one takes no more."""
    def discard(handler, key, query, body):
        if handler.command != "PUT" or "partNumber" not in query:
            return False
        handler.answer(200, b"", [("ETag", etag(body))])
        return True

    server.store.misbehave = discard
    peaks, sizes = [], []
    for size in hidden:
        directory = workspace.directory(f"shard-{size}")
        workspace.train(config(size, 2), directory)
        checkpoint = glob.glob(f"{directory}/checkpoints/step-*1-*")[0]
        sizes.append(os.path.getsize(f"{checkpoint}/shard-00000.h5"))
        with Launch(program, server, 64) as launch:
            launch.ask("open", f"s3://bucket/memory-{size}")
            launch.answer()
            launch.ask("save", checkpoint)
            found = launch.answer()
            peaks.append(launch.peak_bytes())
        if found[0] != "PD_OK":
            raise harness.Failure(f"{found}")
        server.store.objects.clear()
    print("peak memory of an upload from 64 MiB: " + ", ".join(f"{peak / 2**20:.0f} MiB for a shard of {size / 2**20:.0f} MiB"
                                                              for peak, size in zip(peaks, sizes)))
    if sizes[-1] < 100 << 20 or max(peaks) > (64 << 20) + (40 << 20):
        raise harness.Failure("an upload takes more memory than it was given")


def main():
    program, perdure = map(os.path.abspath, sys.argv[1:3])
    with harness.Workspace(perdure) as workspace, Server() as server:
        data = workspace.file("data.txt", harness.text_of(4000))

        def config(hidden, layers):
            return workspace.file(f"{hidden}.yaml", CONFIG.format(data=data, hidden=hidden, layers=layers, head=hidden // 16, ffn=4 * hidden))

        directory = workspace.directory("source")
        workspace.train(config(64, 1), directory)
        checkpoint = glob.glob(f"{directory}/checkpoints/step-*1-*")[0]
        race(program, server, checkpoint, 50 * harness.scale())
        records(program, server, checkpoint)
        fences(program, server, checkpoint)
        given_up(program, server, checkpoint)
        overtake(program, server, checkpoint, 100 * harness.scale())
        directory = workspace.directory("parts")
        workspace.train(config(320, 2), directory)
        checkpoint = glob.glob(f"{directory}/checkpoints/step-*1-*")[0]
        damage(program, server, checkpoint, random.Random(harness.seed()), 10 * harness.scale())
        parts(program, server, checkpoint, 5 * harness.scale())
        memory(program, server, workspace, config, (128, 704) if sys.argv[3:] != ["large"] else (704, 4096))


if __name__ == "__main__":
    main()
