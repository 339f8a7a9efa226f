#!/usr/bin/env python3
"""Who listens and speaks on the network between hosts (namespaces.py). A machine that is no host of the launch speaks to the launcher's port,
with a wrong secret and with the right one; a proxy between the launcher and one host changes, repeats, drops and adds messages of every kind.
The run continues with its bits, nobody is blamed, and the tries are counted in the log.

impostors.py PERDURE; impostors.py proxy DIRECTORY: the proxy, on its host."""
import glob
import hashlib
import hmac
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading

import harness
import hosts
import namespaces

PORT = 7413
KINDS = ["", "HELLO", "CHALLENGE", "PROOF", "BEGUN", "READY", "TRAINING", "SAVED", "GPU", "SUSPECT", "TAKEN", "ENDED", "RELAY", "HEARTBEAT", "CONFIG",
         "REFUSED", "ACK", "WATCH"]  # trainer/status/message.h
UNSEALED = ("HELLO", "CHALLENGE", "PROOF")
MAC = 16
ANSWERS = ("CONFIG", "READY", "WATCH")  # to BEGUN, CONFIG and RELAY
# What the proxy does to the messages of each kind, one after the other.
TRICKS = {"HELLO": ["change"], "CHALLENGE": ["change"], "PROOF": ["change"], "BEGUN": ["change", "drop", "add"], "CONFIG": ["change", "add"],
          "READY": ["repeat"], "RELAY": ["change", "repeat"], "WATCH": ["change", "add"], "HEARTBEAT": ["change", "repeat", "drop", "add"],
          "ENDED": ["change"]}


def message(kind, rank, payload):
    return struct.pack("<IHHI", len(payload), KINDS.index(kind), 0, rank) + payload


def kind_of(data):
    return KINDS[struct.unpack("<H", data[4:6])[0]]


def receive(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def next_message(connection):
    header = receive(connection, 12)
    follow = struct.unpack("<I", header[:4])[0]
    return header + receive(connection, follow + (0 if kind_of(header) in UNSEALED else MAC))


# ---- the proxy ----
class Proxy:
    def __init__(self, directory):
        self.directory = directory
        self.todo = {kind: list(tricks) for kind, tricks in TRICKS.items()}
        self.lock = threading.Lock()
        self.first = b""  # what the first rank sent that was believed: to be sent once more
        self.done = []

    def watch(self, link, source, kind):
        """Whoever hears a sealed message that was tampered with ends the connection: he does not answer it, nor hears 20 more. Of two that
        are the same the first is believed."""
        link["after"] += 1
        is_answered = source is not link["source"] and kind in ANSWERS and link["trick"] and not link["trick"].endswith("repeat")
        if link["trick"] and (link["after"] > 20 or is_answered):
            self.note(f"believed: {link['trick']}")

    def play(self, link, source, kind, data):
        """What continues instead of a message."""
        with self.lock:
            self.watch(link, source, kind)
            trick = self.todo[kind].pop(0) if self.todo.get(kind) and not link["trick"] else None
            if trick and kind not in UNSEALED:
                link.update(trick=f"{kind} {trick}", source=source, after=0)
            with open(os.path.join(self.directory, "traffic"), "ab") as f:
                f.write(data)
            if trick:
                self.note(f"{kind} {trick}")
        changed = data[:-1] + bytes([data[-1] ^ 1])  # of what is not sealed, the payload
        if trick == "add":
            own = f"run: {{dir: {self.directory}/run}}\npreempt: {{notice: 'touch {self.directory}/obeyed'}}\n".encode()
            added = {"CONFIG": message("CONFIG", 0, own), "WATCH": message("WATCH", 2, struct.pack("<ii", 1, 3)),
                     "BEGUN": message("ENDED", 0, b"4\n2\nits disk is full\n"), "HEARTBEAT": message("TAKEN", 1, b"")}[kind]
            return added + bytes(MAC) + data
        return {None: data, "change": changed, "repeat": data + data, "drop": b""}[trick]

    def note(self, what):
        self.done.append(what)
        path = os.path.join(self.directory, "done")
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.done, f)
        os.rename(path + ".new", path)

    def pass_on(self, link, source, to):
        sent = b""
        try:
            while True:
                data = next_message(source)
                sent += data
                with self.lock:
                    is_first = kind_of(data) == "BEGUN" and not self.first
                    if is_first:
                        self.first = sent
                try:
                    to.sendall(self.play(link, source, kind_of(data), data))
                finally:  # its PROOF may have been changed, and this connection be over
                    if is_first:
                        self.say_again()
        except (EOFError, OSError):
            pass
        for connection in (source, to):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def say_again(self):
        """All that a rank has said, on another connection."""
        with self.launcher() as again:
            again.sendall(self.first)
            try:
                while again.recv(4096):
                    pass
            except OSError:
                pass
        with self.lock:
            self.note("all again")

    def launcher(self):
        return socket.create_connection((f"{namespaces.PREFIX}1", PORT))

    def serve(self):
        with socket.create_server(("127.0.0.1", PORT)) as server:
            while True:
                rank = server.accept()[0]
                try:
                    launcher = self.launcher()
                except OSError:
                    rank.close()
                    continue
                link = {"trick": None, "source": None, "after": 0}
                for ends in ((link, rank, launcher), (link, launcher, rank)):
                    threading.Thread(target=self.pass_on, args=ends, daemon=True).start()


# ---- the tests ----
def prove(connection, secret, start=0):
    """Whether the launcher knows this secret; then it has this side's proof."""
    own = os.urandom(32)
    connection.sendall(message("HELLO", 0, own))
    theirs, proof = struct.unpack("<32s32s", next_message(connection)[12:])

    def derive(side):
        return hmac.new(secret, struct.pack("<16s16sI32s32s", b"proof", side, start, theirs, own), hashlib.sha256).digest()

    connection.sendall(message("PROOF", 0, derive(b"rank")))
    key = hmac.new(secret, struct.pack("<16s16sI32s32s", b"message", b"rank", start, theirs, own), hashlib.sha256).digest()
    return hmac.compare_digest(proof, derive(b"launcher")), key


def say(connection, key, number, kind, rank, payload=b""):
    data = message(kind, rank, payload)
    connection.sendall(data + hmac.new(key, struct.pack("<Q", number) + data, hashlib.sha256).digest()[:MAC])


def is_closed(connection):
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def stranger(secret_text):
    """On a machine of the same network: what was expected and is not so, in words."""
    secret, wrong = bytes.fromhex(secret_text), bytes(32)
    address = (f"{namespaces.PREFIX}1", PORT)
    for number in range(10):
        with socket.create_connection(address) as connection:
            knows, key = prove(connection, secret if number == 9 else wrong, 7 if number == 9 else 0)  # the last is of another start
            say(connection, key, 0, "ENDED", 1, b"4\n2\nits disk is full\n")
            if knows or not is_closed(connection):
                return f"the wrong secret: it is believed ({knows})"
    for kind, payload in (("HEARTBEAT", b""), ("CONFIG", b"run: {dir: elsewhere}\n"), ("BEGUN", b"no process\n"), ("WATCH", bytes(8))):
        with socket.create_connection(address) as connection:
            knows, key = prove(connection, secret)
            if not knows:
                return "the launcher does not know its own secret"
            say(connection, key, 0, "READY", 2)
            connection.settimeout(1)
            try:
                connection.recv(1)
                return "a rank that knows the secret is not listened to"
            except TimeoutError:
                pass
            say(connection, key, 1, kind, 2, payload)
            if not is_closed(connection):
                return f"{kind} of a rank that is none of it is taken"
    return ""


def secret_of(bench):
    return harness.read(glob.glob(f"{bench.directories[0]}/.launch-*/secret")[0]).strip()


def tries(bench):
    found = re.findall(r"\((\d+) such tries so far\): refused|in all (\d+) tries without the launch's secret were refused", bench.said())
    return max((int(one or other) for one, other in found), default=0)


def undisturbed(bench, run):
    bench.steps(run, 3)
    if len(bench.starts(0)) != 1 or re.search(r"died|without a message|lost host|disk is full|taken away", bench.said()):
        bench.fail("the run was disturbed, or somebody is blamed")


def listened_on(bench, name):
    """Addresses of the host at which somebody waits for connections to the port, as its kernel shows them."""
    rows = subprocess.run(["nsenter", "-t", str(bench.net.pids[name]), "-n", "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                          capture_output=True, text=True, check=True).stdout
    return set(re.findall(rf"^ *\d+: ([0-9A-F]+):{PORT:04X} \S+ 0A ", rows, re.MULTILINE))


def on_the_port(bench):
    bench.list_hosts(["a", "b", "c"])
    run = bench.start("a", f"launch.port={PORT}")
    bench.steps(run, 2)
    own = struct.pack("<I", struct.unpack(">I", socket.inet_aton(f"{namespaces.PREFIX}1"))[0]).hex().upper()
    if listened_on(bench, "a") != {own}:
        bench.fail(f"the launcher listens at {listened_on(bench, 'a')}, not at {own} alone")
    with bench.net.popen("d", [sys.executable, __file__, "stranger", secret_of(bench)], stdout=subprocess.PIPE, text=True) as other:
        said = other.communicate(timeout=harness.PATIENCE)[0].strip()
    if said or other.returncode:
        bench.fail(f"a stranger on the port: {said or other.returncode}")
    undisturbed(bench, run)
    bench.leave(run)
    if tries(bench) < 10 or "10.77.0.4 connected to this launch's port and did not prove that it knows the launch's secret (1 such tries" not in bench.said():
        bench.fail(f"10 tries are counted as {tries(bench)}")
    print(f"a stranger on the port: {tries(bench)} tries counted and refused", flush=True)


def between(bench):
    """On host c the launcher's address is the proxy's, and nothing else is changed."""
    bench.list_hosts(["a", "b", "c"])
    exe, place = os.path.realpath(bench.workspace.perdure), f"{bench.net.root}/proxy"
    os.makedirs(place)
    copy = shutil.copy(exe, f"{bench.net.root}/perdure")
    hosts.write(f"{bench.net.root}/wrapper", f"#!/bin/sh\nPERDURE_LAUNCH_ADDRESSES=127.0.0.1:{PORT} exec {copy} \"$@\"\n")
    os.chmod(f"{bench.net.root}/wrapper", 0o755)
    bench.net.replace("c", exe, f"{bench.net.root}/wrapper")
    proxy = bench.net.popen("c", [sys.executable, __file__, "proxy", place])
    bench.net.processes.append(proxy)
    run = bench.start("a", f"launch.port={PORT}")

    def done():
        path = os.path.join(place, "done")
        return json.loads(harness.read(path)) if os.path.exists(path) else []

    wanted = {f"{kind} {trick}" for kind, tricks in TRICKS.items() for trick in tricks} | {"all again"}

    def believed():
        return [what for what in done() if what.startswith("believed")]

    bench.wait(run, lambda: believed() or wanted - set(done()) == {"ENDED change"}, "every trick was tried")
    if believed():
        bench.fail(f"what the proxy made of a message was {believed()[0]}")
    secret = secret_of(bench)
    undisturbed(bench, run)
    bench.leave(run)
    with open(os.path.join(place, "traffic"), "rb") as f:
        traffic = f.read()
    if wanted - set(done()) or secret.encode() in traffic or bytes.fromhex(secret) in traffic:
        bench.fail(f"tried {done()}, or the secret was on the wire")
    if os.path.exists(os.path.join(place, "obeyed")) or os.path.exists(os.path.join(place, "run")):
        bench.fail("what was added was obeyed")
    said = bench.said()
    if tries(bench) < 9 or "10.77.0.3 sent a message that was changed on its way" not in said or \
            "host c: an answer of the launcher was changed on its way: refused" not in said or \
            "host c: another program answers at the launcher's address and does not know the secret of this launch: refused" not in said:
        bench.fail(f"tricks are counted as {tries(bench)}")
    print(f"a proxy between two hosts: {len(done())} tricks, {tries(bench)} counted by the launcher", flush=True)


def body(workspace, arguments):
    if not namespaces.can_make():
        print("skipped: namespaces of networks, mounts and processes need root")
        sys.exit(77)
    text = harness.text_of(40000)
    config = workspace.file("run.yaml", hosts.CONFIG.format(data=workspace.file("text.txt", text)))
    quiet = workspace.directory("quiet")
    workspace.train(config, quiet, ["layout.ranks=1", f"run.steps={hosts.QUIET_STEPS}", "optimizer.decay_steps=100000"])
    known = harness.losses(quiet)
    for case in [globals()[name] for name in arguments] or [on_the_port, between]:
        with namespaces.Network(workspace.directory("net"), ["a", "b", "c", "d"]) as net:
            bench = hosts.Bench(workspace, net, hosts.CONFIG, text)
            case(bench)
            found = harness.losses(bench.directories[0])
            if any(found[step] != bits for step, bits in known.items() if step in found):
                bench.fail("other losses than those of the quiet run")


if sys.argv[1] == "proxy":
    Proxy(sys.argv[2]).serve()
elif sys.argv[1] == "stranger":
    print(stranger(sys.argv[2]))
else:
    harness.main(body)
