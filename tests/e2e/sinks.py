#!/usr/bin/env python3
"""Metrics beside metrics.jsonl: TensorBoard's event files and Prometheus' text say what metrics.jsonl says; a sink that is broken (no
directory, a taken port, a full disk, clients that never read) costs one warning and no step; events.jsonl tells the run's life."""
import contextlib
import glob
import json
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import time

import harness

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(TOP, "tests", "helpers"))
import dashboard  # noqa: E402
import free_ports  # noqa: E402

CONFIG = """
run: {{seed: 5, steps: 12}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 128}}
data: {{train: [{{path: {data}}}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
validation: {{every: 4, sequences: 4}}
checkpoint: {{every: 5}}
layout: {{threads: 1, ranks: 2, transport: local}}
"""


def check(condition, what):
    if not condition:
        raise harness.Failure(what)


def rows_of(directory):
    """The last line of a step counts."""
    rows = [json.loads(line) for line in harness.read(os.path.join(directory, "metrics.jsonl")).splitlines()]
    return sorted({row["step"]: row for row in rows}.values(), key=lambda row: row["step"])


# ---- TensorBoard: records, checksums and protobuf, read by rules of their own ----

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    at, found = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            found.append((key >> 3, varint()))
            continue
        size = {1: 8, 5: 4}.get(wire) or varint()
        found.append((key >> 3, data[at:at + size]))
        at += size
    return found


def events_of(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 0
    while at < len(data):
        (length,), (of_length,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        event = data[at + 12:at + 12 + length]
        check(of_length == masked(data[at:at + 8]), f"{path}: the checksum of a length is wrong at {at}")
        check(struct.unpack_from("<I", data, at + 12 + length)[0] == masked(event), f"{path}: the checksum of an event is wrong at {at}")
        yield dict(fields(event))
        at += 16 + length


def scalars_of(directory):
    """(step, tag) to value over all files, and the steps at which sessions started: like TensorBoard, a start drops what was at its step or later."""
    found, starts = {}, []
    for path in sorted(glob.glob(os.path.join(directory, "tensorboard", "events.out.tfevents.*"))):
        for number, event in enumerate(events_of(path)):
            check((number == 0) == (event.get(3) == b"brain.Event:2"), f"{path}: event {number} is {event}")
            if 7 in event:
                starts.append(event[2])
                found = {key: value for key, value in found.items() if key[0] < event[2]}
            for _, one in fields(event.get(5, b"")):
                value = dict(fields(one))
                found[event[2], value[1].decode()] = struct.unpack("<f", value[2])[0]
    return found, starts


def check_tensorboard(directory):
    scalars, starts = scalars_of(directory)
    rows = rows_of(directory)
    keys = {"loss/train": "loss", "loss/validation": "validation_loss", "optimizer/gradient_norm": "gradient_norm",
            "optimizer/learning_rate": "learning_rate", "speed/tokens_per_second": "tokens_per_second",
            "memory/resident_bytes": "memory_bytes", "speed/step_seconds": "seconds", "checkpoint/save_seconds": "save_seconds"}
    for row in rows:
        for tag, key in keys.items():
            value = scalars.get((row["step"], tag))
            wanted = struct.unpack("<f", struct.pack("<f", row[key]))[0] if key in row else None
            check(value == wanted, f"step {row['step']}: {tag} is {value}, and metrics.jsonl has {wanted}")
    return starts


# ---- Prometheus ----

SAMPLE = re.compile(r'([a-z_]+)\{run="([^"]*)"(?:,([a-z]+)="([^"]*)")?\} (\S+)')


def samples_of(text):
    """By name and label; every line is of the format, and every name has its type and help before it."""
    found, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            check(match, f"no sample of Prometheus' format: {line}")
            name = match[1]
            family = re.sub("_(sum|count)$", "", name) if name not in types else name
            check(family in types, f"{name} has no type")
            check((types[family] == "counter") == name.endswith("_total"), f"{name} is a {types[family]}")
            found[name, match[4]] = float(match[5])
    return found


def get(port, path="/metrics", method="GET"):
    with socket.create_connection(("127.0.0.1", port), timeout=harness.PATIENCE) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = b""
        while True:
            part = s.recv(65536)
            if not part:
                break
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    check(f"Content-Length: {len(body.encode())}" in head or method == "HEAD" and not body, f"the answer says {head}, and has {len(body)} bytes")
    return head.split()[1], body


def check_prometheus(samples, row):
    keys = {"perdure_step": "step", "perdure_loss": "loss", "perdure_gradient_norm": "gradient_norm",
            "perdure_learning_rate": "learning_rate", "perdure_memory_bytes": "memory_bytes", "perdure_ranks": "ranks",
            "perdure_checkpoint_step": "last_checkpoint"}
    for name, key in keys.items():
        check(samples[name, None] == row[key], f"{name} is {samples[name, None]}, and metrics.jsonl has {row[key]}")
    check(abs(samples["perdure_stage_seconds_total", "forward"]) > 0, "no time of forward")


def start(workspace, config, directory, overrides, environment):
    command = [workspace.perdure, "train", config, f"run.dir={directory}", *overrides]
    return subprocess.Popen(command, env=dict(os.environ, PERDURE_PROGRESS="off", **environment), stderr=subprocess.PIPE, text=True)


def all_sinks(workspace, config):
    """A rank is killed behind step 8, and two continue from the checkpoint of step 5, or from the beginning where it came too late."""
    directory = workspace.directory()
    overrides = ["metrics.tensorboard=true", f"metrics.prometheus_listen={free_ports.one()}", "layout.ranks=1", "restart.ranks=[2]"]
    once = os.path.join(workspace.path, "once")
    result = workspace.train(config, directory, overrides, {"PERDURE_FAULT": "worker.stepped:8:kill", "PERDURE_FAULT_ONCE": once})
    check("warn metrics" not in result.stderr, result.stderr)
    starts = check_tensorboard(directory)
    events = [json.loads(line) for line in harness.read(os.path.join(directory, "events.jsonl")).splitlines()]
    check([e["event"] for e in events].count("ranks") == 2, f"events.jsonl has {events}")
    events = [e for e in events if e["event"] != "ranks"]
    check([e["event"] for e in events] == ["start", "open", "end", "start", "open", "leave", "end"], f"events.jsonl has {events}")
    check(starts == [1, 1 + events[4]["step"]] and starts[1] in (1, 6), f"sessions start at {starts}")
    check(events[1]["step"] == 0 and events[1]["ranks"] == 1 and events[4]["ranks"] == 2, f"{events}")
    check("SIGKILL" in events[2]["cause"] and events[2]["restarts"] and events[6]["exit_code"] == 0 and events[5]["step"] == 12, f"{events}")
    for row in rows_of(directory):
        check(0 < sum(row["stages"].values()) <= row["seconds"], f"stages of step {row['step']} are {row['stages']}")
    print("every sink says what metrics.jsonl says, over a restart")
    return directory


def is_below(pid, ancestor):
    while pid > 1 and pid != ancestor:
        pid = int(harness.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
    return pid == ancestor


def no_descriptors(launcher, port, answers):
    """Its thread sleeps between attempts: one that spins takes a core beside the ranks."""
    for comm in glob.glob("/proc/[0-9]*/task/*/comm"):
        pid, task = int(comm.split("/")[2]), os.path.dirname(comm)
        try:
            if harness.read(comm) == "pd-http\n" and is_below(pid, launcher.pid):
                break
        except OSError:
            pass
    else:
        raise harness.Failure("no thread serves the endpoint")

    def ticks(of):
        return sum(map(int, harness.read(os.path.join(of, "stat")).rpartition(")")[2].split()[11:13]))

    before, used = resource.prlimit(pid, resource.RLIMIT_NOFILE), set(map(int, os.listdir(f"/proc/{pid}/fd")))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), before[1]))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            before_sleep, seconds = ticks(task), 1
            time.sleep(seconds)
            share = (ticks(task) - before_sleep) / os.sysconf("SC_CLK_TCK") / seconds
            check(share < 0.1, f"the endpoint's thread takes {share:.0%} of a core while no descriptor is free")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    harness.wait_for(answers, "the endpoint answers once descriptors are free")


def endpoint(workspace, config):
    """Asked while steps continue, and while as many clients as it serves say nothing."""
    directory, port = workspace.directory(), free_ports.one()
    launcher = start(workspace, config, directory, [f"metrics.prometheus_listen=localhost:{port}", "run.steps=100000"],
                     {"PERDURE_FAULT": "worker.stepped:1:sleep"})
    try:
        def answers():
            try:
                return samples_of(get(port)[1]).get(("perdure_step", None))
            except OSError:
                return None
        first = harness.wait_for(answers, "the endpoint answers")
        harness.wait_for(lambda: answers() > first, "the endpoint continues")
        samples = harness.wait_for(lambda: (lambda found: ("perdure_validation_loss", None) in found and found)(samples_of(get(port)[1])), "a validation")
        rows = harness.wait_for(lambda: [row for row in rows_of(directory) if row["step"] == samples["perdure_step", None]], "its line")
        check_prometheus(samples, rows[0])
        asked = dashboard.names(os.path.join(TOP, "tools", "dashboards", "perdure.json"))
        check(asked <= {name for name, _ in samples}, f"the dashboard asks for {asked - {name for name, _ in samples}}")
        for path, method, code in (("/other", "GET", "404"), ("/metrics", "HEAD", "200"), ("/metrics", "POST", "405")):
            check(get(port, path, method)[0] == code, f"{method} {path} is not answered with {code}")
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        check(get(port)[0] == "200", "the endpoint does not answer beside clients that say nothing")
        before = harness.steps_done(directory)
        harness.wait_for(lambda: harness.steps_done(directory) > before + 20, "steps beside clients that say nothing")
        for s in slow:
            s.close()
        harness.wait_for(answers, "the endpoint answers when they have left")
        no_descriptors(launcher, port, answers)
    finally:
        launcher.terminate()
        launcher.communicate(timeout=harness.PATIENCE)
    check(launcher.returncode == 75, f"exit {launcher.returncode}")
    print("the endpoint answers, and waits for nobody")


def broken(workspace, config, undisturbed):
    directory = workspace.directory()
    os.makedirs(directory)
    workspace.file(os.path.join(directory, "tensorboard"), "no directory\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = workspace.train(config, directory, ["metrics.tensorboard=true",
                                                     f"metrics.prometheus_listen={port}"])
    for name in ("tensorboard", "prometheus_listen"):
        lines = [line for line in result.stderr.splitlines() if f"warn metrics r0: metrics.{name}: " in line]
        check(len(lines) == 1 and "the run continues" in lines[0], f"of a broken metrics.{name} the log has {lines}\n{result.stderr}")
    check(harness.losses(directory) == undisturbed, "a broken sink changed the losses")
    said = workspace.train(config, workspace.directory(), ["metrics.prometheus_listen=192.0.2.1:9400"]).stderr
    check("listening at 192.0.2.1 port 9400; name another" in said, said)
    print("a broken sink costs one warning")


def full_disk(workspace, config, undisturbed):
    """All that a run writes but checkpoints lies on a full disk: metrics are lost, the run is not."""
    with harness.Disk(workspace, 8) as disk:
        if not disk.is_mounted:
            print("skipped: no file system can be mounted here")
            return
        directory = workspace.directory()
        os.makedirs(directory)
        for name in ("metrics.jsonl", "tensorboard"):
            target = os.path.join(disk.path, name)
            os.makedirs(target) if name == "tensorboard" else open(target, "w").close()
            os.symlink(target, os.path.join(directory, name))
        disk.fill(0)
        overrides = ["metrics.tensorboard=true"]
        result = workspace.train(config, directory, overrides)
        lines = [line for line in result.stderr.splitlines() if "warn metrics" in line]
        check(len(lines) == 2, f"two sinks on a full disk, and the log has {lines}\n{result.stderr}")
        check(not rows_of(directory), "the disk was not full")
        disk.free()
        workspace.train(config, directory, ["run.steps=14", *overrides])
        rows = rows_of(directory)  # the first: the validation of the step it continues from, which no line had
        check([row["step"] for row in rows] == [12, 13, 14] and "validation_loss" in rows[0], f"metrics continue when there is room: {rows}")
    print("a full disk costs one warning a sink")


def body(workspace, _):
    data = workspace.file("text.txt", harness.text_of(20000))
    config = workspace.file("run.yaml", CONFIG.format(data=data))
    plain = workspace.directory()
    workspace.train(config, plain)
    undisturbed = harness.losses(plain)
    check(harness.losses(all_sinks(workspace, config)) == undisturbed, "sinks changed the losses")
    endpoint(workspace, config)
    broken(workspace, config, undisturbed)
    full_disk(workspace, config, undisturbed)


if __name__ == "__main__":
    sys.exit(harness.main(body))
