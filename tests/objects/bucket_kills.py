#!/usr/bin/env python3
"""Two hosts out of namespaces (tests/e2e/namespaces.py), each with a network, memory and disk of its own, train with a tier in memory and one
in a bucket, behind a proxy that misbehaves. Both are lost at random moments with everything on them, and the server is killed and comes
back; the same command goes on, on new hosts and with another number of ranks, from the newest step in the bucket or a newer one. Every
loss and the last state are those of a quiet run. 5 losses, 3 with weed, 200 with PERDURE_TEST_SCALE of 10 or more; a number says how many.
Arguments: PERDURE [weed] [COUNT]"""
import contextlib
import ctypes
import http.client
import http.server
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from bucket_tier import CONFIG, SLOW, Ours, Weed, committed, find_weed, harness
import namespaces

STEPS = 120
ADDRESS, PORT = namespaces.PREFIX + "254", 9000  # of the proxy, on a network of its own
PATIENCE = 300


class Proxy(http.server.BaseHTTPRequestHandler):
    """In front of a server: passes a request on, or drops, delays, cuts or doubles it, or refuses it itself."""
    protocol_version, chooser, port = "HTTP/1.1", None, 0

    def log_message(self, *_):
        pass

    def passed_on(self, body):
        """Status, headers and body; None: there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def serve(self):
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        kind = self.chooser.choices(("500", "503", "409", "late", "before", "after", "cut", "twice", "well"), (3, 3, 2, 4, 3, 3, 3, 3, 76))[0]
        self.close_connection = kind in ("before", "after", "cut") or len(body) < length
        if kind == "late":
            time.sleep(self.chooser.uniform(0, 0.5))
        if kind == "before" or len(body) < length:
            return
        refused = kind in ("500", "503") or kind == "409" and self.command == "PUT"
        answer = (int(kind), [], b"") if refused else self.passed_on(body)
        if kind == "twice":
            answer = self.passed_on(body)
        self.close_connection |= answer is None
        if answer is None or kind == "after":
            return
        status, headers, data = answer
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = dict((name.lower(), value) for name, value in headers).get("content-length") if self.command == "HEAD" else len(data)
        if status != 204 and length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data[:len(data) // 2] if kind == "cut" else data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = serve


@contextlib.contextmanager
def proxy_on_switch(net, server, chooser):
    """Hosts reach it over their own network, and it reaches the server over the loopback of the test: a socket stays where it was made."""
    port = int(server.environment()["AWS_ENDPOINT_URL_S3"].rpartition(":")[2])
    net.on_switch("ip", "addr", "add", ADDRESS + "/24", "dev", "br0")
    made = []

    def listen():  # in a thread of its own, since setns moves the thread
        with open(f"/proc/{net.switch}/ns/net", encoding="utf-8") as f:
            if ctypes.CDLL(None).setns(f.fileno(), 0x40000000) == 0:
                made.append(http.server.ThreadingHTTPServer((ADDRESS, PORT), type("", (Proxy,), {"chooser": chooser, "port": port})))
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    proxy = made[0]
    proxy.handle_error = lambda *_: None  # of hosts that are lost
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        proxy.shutdown()
        proxy.server_close()


class Hosts:
    """What starts the command on two hosts, and takes them away."""

    def __init__(self, workspace, net, text):
        self.workspace, self.net, self.text = workspace, net, text
        self.log, self.disk, self.run = os.path.join(net.root, "log"), f"{net.root}/disk", None

    def start(self, prefix, ranks):
        """On empty disks, in another directory than before."""
        self.run_name = f"run-{random.randrange(1 << 30)}"
        for name in self.net.names:
            for file, text in (("text.txt", self.text), ("hosts", f"a:{ranks - ranks // 2}\nb:{ranks // 2}\n"),
                               ("run.yaml", CONFIG.format(steps=STEPS, data=f"{self.disk}/text.txt") + "restart: {limit: 0}\n")):
                with open(f"{self.net.root}/disk-{name}/{file}", "w", encoding="utf-8") as f:
                    f.write(text)
        tiers = f"[{{dir: /dev/shm/tier, every: 1, keep_last: 2}}, {{dir: s3://bucket/{prefix}, every: 1, keep_last: 2}}]"
        with open(self.log, "w", encoding="utf-8") as log:
            self.run = self.net.popen("a", [self.workspace.perdure, "train", f"{self.disk}/run.yaml", f"run.dir={self.disk}/{self.run_name}", f"layout.ranks={ranks}",
                                            f"launch.hosts={self.disk}/hosts", f"launch.agent={namespaces.AGENT}", f"checkpoint.tiers={tiers}"],
                                      stdout=log, stderr=log)

    def said(self):
        return harness.read(self.log)

    def metrics(self):
        path = f"{self.net.root}/disk-a/{self.run_name}/metrics.jsonl"
        lines = harness.read(path).split("\n")[:-1] if os.path.exists(path) else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def lose(self, chooser):
        """Both at once, so nobody is left who would close a connection: what is in flight arrives, or does not."""
        if chooser.random() < 0.5:
            self.unplug()
        for name in self.net.names:
            if name in self.net.pids:
                os.kill(self.net.pids.pop(name), signal.SIGKILL)
        self.run.wait(timeout=PATIENCE)
        self.unplug()

    def unplug(self):
        for number in range(len(self.net.names)):
            subprocess.run(["nsenter", "-t", str(self.net.switch), "-n", "ip", "link", "del", f"v{number}"], capture_output=True, check=False)

    def renew(self, chooser):
        self.lose(chooser)
        for name in self.net.names:
            shutil.rmtree(f"{self.net.root}/disk-{name}")
            self.net.boot(name)


def disturb(hosts, server, chooser):
    """Until the hosts are lost or the run ends: then whether the server was away meanwhile, and the exit code or None."""
    what = chooser.choice(("hosts", "hosts", "server first", "hosts first"))
    if chooser.random() < 0.8:  # else also while it starts
        harness.wait_for(lambda: hosts.run.poll() is not None or hosts.metrics(), "a step")
    time.sleep(chooser.uniform(0, 3))
    if what == "server first":
        server.kill()
        time.sleep(chooser.uniform(0, 3))
        server.start()
        time.sleep(chooser.uniform(0, 3))
    code = hosts.run.poll()
    if code is not None:
        return what != "hosts", code
    if what == "hosts first":
        server.kill()
        time.sleep(chooser.uniform(0, 1))
    code = hosts.run.poll()
    if code is None:
        hosts.lose(chooser)
    if what == "hosts first":
        server.start()
    return what != "hosts", code


def campaign(hosts, server, chooser, quiet, wanted):
    runs, lost, resumed, killed, code = 0, 0, 0, 0, 0
    while lost < wanted or code is None:
        if code == 0:
            runs += 1
            prefix, ranks = f"kills-{runs}", 4
        before = committed(server, prefix)
        hosts.start(prefix, ranks)
        was_away = False
        if lost < wanted:
            was_away, code = disturb(hosts, server, chooser)
            killed += was_away
            lost += code is None and bool(hosts.metrics())  # only while it trains and uploads
        else:
            code = hosts.run.wait(timeout=PATIENCE)
        said, rows, after = hosts.said(), hosts.metrics(), committed(server, prefix)
        found = re.search(r"resumed at step (\d+)", said)
        if before and (found or "fresh start" in said) and (not found or int(found.group(1)) < max(before)):
            raise harness.Failure(f"steps {sorted(before)} were in the bucket\n{said}")
        claimed = rows[-1]["tiers"][1]["newest"] if rows else 0
        if max(after, default=0) < max(claimed, *before, 0):
            raise harness.Failure(f"steps {sorted(after)} are in the bucket, {sorted(before)} were, and step {claimed} was committed\n{said}")
        if any(quiet[0][row["step"]] != row["loss_bits"] for row in rows):
            raise harness.Failure(f"losses other than those of the quiet run\n{said}")
        print(f"{lost} losses: {ranks} ranks went on from step {found and found.group(1)} to {rows[-1]['step'] if rows else None}, the bucket has step "
              f"{max(after, default=0)}{', the server was killed' if was_away else ''}", flush=True)
        resumed += found is not None
        if code == 74 and was_away:  # it was away at the start, or at the end
            code = None
        if code:
            raise harness.Failure(f"ended by itself with {code}\n{said}")
        if code == 0:
            stats = subprocess.run([hosts.workspace.perdure, "ckpt", "stats", f"s3://bucket/{prefix}", "--json"], env={**os.environ, **server.environment()},
                                   capture_output=True, text=True, check=False)
            if max(after) != STEPS or stats.returncode or json.loads(stats.stdout)["state_digest"] != quiet[1]:
                raise harness.Failure(f"step {max(after)}, and another state than that of the quiet run: {stats.stdout}{stats.stderr}\n{said}")
        hosts.renew(chooser)
        ranks = chooser.choice([count for count in (3, 4) if count != ranks] or [3]) if chooser.random() < 0.8 else 2
    print(f"{lost} times two hosts were lost with all that they had, and {killed} times the server died: in {runs} runs {resumed} starts went on from "
          "the newest step in the bucket, same bits")


def body(workspace, arguments):
    if not namespaces.can_make():
        print("skipped: namespaces of networks, mounts and processes need root")
        sys.exit(77)
    numbers = [int(word) for word in arguments if word.isdigit()]
    wanted = numbers[0] if numbers else 200 if harness.scale() >= 10 else 3 if "weed" in arguments else 5
    chooser, text = random.Random(harness.seed()), harness.text_of(40000)
    quiet_directory = workspace.directory("quiet")
    workspace.train(workspace.file("run.yaml", CONFIG.format(steps=STEPS, data=workspace.file("text.txt", text))), quiet_directory, ["layout.ranks=2"])
    quiet = harness.losses(quiet_directory), workspace.state_digest(quiet_directory)
    with Weed(workspace, find_weed()) if "weed" in arguments else Ours() as server:
        os.environ.update(server.environment(), AWS_ENDPOINT_URL_S3=f"http://{ADDRESS}:{PORT}", AWS_EC2_METADATA_DISABLED="true", PERDURE_PROGRESS="off", **SLOW)
        with namespaces.Network(workspace.directory("net"), ["a", "b"]) as net, proxy_on_switch(net, server, chooser):
            campaign(Hosts(workspace, net, text), server, chooser, quiet, wanted)


if __name__ == "__main__":
    harness.main(body)
