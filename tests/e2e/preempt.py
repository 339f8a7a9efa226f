#!/usr/bin/env python3
"""preempt.notice and PERDURE_GRACE_S: a run whose command says that its host is taken away saves and leaves with 75, on one host or the second
of two, and continues with the same bits; a command that hangs or is none disturbs nothing; a save that does not end in time is given up. The
examples for EC2, GCP and Azure, before a metadata server of this test's own.   preempt.py PERDURE SOURCE"""
import contextlib
import http.server
import os
import signal
import subprocess
import threading

import harness

CONFIG = """
run: {{seed: 3, steps: 12}}
model: {{family: llama, vocab: 256, context: 64, layers: 2, hidden: 32, heads: 2, kv_heads: 2, head_size: 16, ffn: 64}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 4, micro_batch: 2, context: 64}}
checkpoint: {{every: 4}}
layout: {{ranks: 1, threads: 1}}
"""
PAIR = ["layout.ranks=2", "layout.transport=mpi"]


def check(is_true, what):
    if not is_true:
        raise harness.Failure(what)


class Metadata(http.server.BaseHTTPRequestHandler):
    """What the three answer, as their documentation says; `notice` is whether they have anything to announce."""
    notice = False
    EVENTS = '{"DocumentIncarnation":1,"Events":[{"EventId":"A","EventType":"Reboot","Resources":["vm-1"]},%s]}'
    EVICTED = '{"EventId":"B","EventStatus":"Scheduled","EventType":"Preempt","ResourceType":"VirtualMachine","Resources":["%s"]}'

    def log_message(self, *_):
        pass

    def answer(self, text):
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_PUT(self):
        asks = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self.answer("TOKEN" if asks else None)

    def do_GET(self):
        notice, headers = type(self).notice, self.headers
        answers = {
            "/latest/meta-data/spot/instance-action": (headers.get("X-aws-ec2-metadata-token") == "TOKEN" and notice and '{"action": "terminate"}') or None,
            "/computeMetadata/v1/instance/preempted": headers.get("Metadata-Flavor") == "Google" and ("TRUE" if notice else "FALSE"),
            "/metadata/instance/compute/name?api-version=2021-02-01&format=text": headers.get("Metadata") and "vm-1",
            "/metadata/scheduledevents?api-version=2020-07-01": headers.get("Metadata") and self.EVENTS % (self.EVICTED % ("vm-1" if notice else "vm-2"))}
        self.answer(answers.get(self.path) or None)


def examples(source):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.closing(server.socket):
        environment = dict(os.environ, PERDURE_METADATA=f"http://127.0.0.1:{server.server_port}", no_proxy="127.0.0.1")
        for name in ("ec2", "gcp", "azure"):
            script = os.path.join(source, "tools", "launch", f"{name}-notice.sh")
            for notice in (False, True, False):
                Metadata.notice = notice
                code = subprocess.call([script], env=environment)
                check((code == 0) == notice, f"{name}: exit {code} where there is {'a' if notice else 'no'} notice")
        server.shutdown()
    for name in ("ec2", "gcp", "azure"):
        script = os.path.join(source, "tools", "launch", f"{name}-notice.sh")
        check(subprocess.call([script], env=environment) != 0, f"{name}: a notice where nobody answers")


def unknown_command(workspace, config):
    """It is asked again and again, and named once."""
    log = workspace.file("unknown.log", "")
    words = ["train", config, f"run.dir={workspace.directory()}", "run.steps=100000", "preempt.notice=echo >> asked; no-such-command-here"]
    with open(log, "w", encoding="utf-8") as out, subprocess.Popen([workspace.perdure, *words], env=dict(os.environ, PERDURE_PROGRESS="off"),
                                                                   cwd=workspace.path, stderr=out) as launch:
        asked = os.path.join(workspace.path, "asked")
        harness.wait_for(lambda: os.path.exists(asked) and os.path.getsize(asked) > 2 or launch.poll() is not None, "it is asked three times")
        launch.send_signal(signal.SIGTERM)
        code = launch.wait(timeout=harness.PATIENCE)
    said = harness.read(log)
    check(code == 75 and said.count("preempt.notice: sh cannot run it (exit code 127)") == 1, f"a command that is none: exit {code}\n{said}")


def notices(workspace, config, quiet):
    for more in ([], PAIR, PAIR):
        run, sign, second = workspace.directory(), os.path.join(workspace.path, "sign"), workspace.count % 2
        is_there = f"test -e {sign}" + (' && test "$OMPI_COMM_WORLD_RANK" = 1' if more and second else "")
        environment = {"PERDURE_TEST_HOSTS": "2"} if more and second else {}
        named = workspace.file("named.yaml", harness.read(config) + f"\npreempt: {{notice: '{is_there}'}}\n")  # as a host's own copy has to
        words = ["train", named, f"run.dir={run}", "run.steps=100000", "optimizer.decay_steps=12", "optimizer.warmup_steps=1", f"preempt.notice={is_there}", *more]
        with subprocess.Popen([workspace.perdure, *words], env=dict(os.environ, PERDURE_PROGRESS="off", **environment), stderr=subprocess.PIPE,
                              text=True) as launch:
            harness.wait_for(lambda: harness.steps_done(run) > 4 or launch.poll() is not None, "some steps")
            open(sign, "w", encoding="utf-8").close()
            said = launch.communicate(timeout=harness.PATIENCE)[1]
        os.unlink(sign)
        check(launch.returncode == 75 and said.count("(preempt.notice): saving and leaving") == 1 and "is saved, the same command continues" in said,
              f"{more}: exit {launch.returncode}\n{said}")
        saved = max(harness.losses(run))
        workspace.train(config, run, [f"run.steps={saved + 1}", "optimizer.decay_steps=12", "optimizer.warmup_steps=1", *more])
        workspace.train(config, quiet, [f"run.steps={saved + 1}", "optimizer.decay_steps=12", "optimizer.warmup_steps=1"])
        found, wanted = harness.losses(run), harness.losses(quiet)
        check(all(found[step] == wanted[step] for step in found), f"{more}: other bits than a quiet run")
    unknown_command(workspace, config)
    workspace.train(config, workspace.directory(), ["preempt.notice=sleep 98765 & sleep 98765"])
    harness.wait_for(lambda: subprocess.call(["pgrep", "-f", "^sleep 98765$"], stdout=subprocess.DEVNULL), "a command that hangs ends with the run")


def grace(workspace, config):
    """The save is stopped when its shard is written and not committed, for longer than there is time."""
    for more in ([], PAIR):
        run = workspace.directory()
        workspace.train(config, run, ["run.steps=4", *more])
        with subprocess.Popen([workspace.perdure, "train", config, f"run.dir={run}", "run.steps=100000", "checkpoint.every=0", *more], text=True,
                              stderr=subprocess.PIPE, env=dict(os.environ, PERDURE_PROGRESS="off", PERDURE_GRACE_S="3",
                                                               PERDURE_FAULT="store.prepare.written:1:stop")) as launch:
            harness.wait_for(lambda: harness.steps_done(run) > 6 or launch.poll() is not None, "some steps")
            launch.send_signal(signal.SIGTERM)
            said = launch.communicate(timeout=harness.PATIENCE)[1]
        check(launch.returncode == 75 and "not all ranks had saved in time (PERDURE_GRACE_S): ended" in said, f"exit {launch.returncode}\n{said}")
        said = workspace.train(config, run, ["run.steps=6", *more]).stderr
        check("resumed at step 4" in said, f"the checkpoint before does not stand:\n{said}")
    said = workspace.train(config, workspace.directory(), [], {"PERDURE_GRACE_S": "long"}, expect=64).stderr
    check("PERDURE_GRACE_S=long is not a number of seconds" in said, said)


def body(workspace, arguments):
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(40000))))
    examples(arguments[0])
    notices(workspace, config, workspace.directory("quiet"))
    grace(workspace, config)
    print("preemption: saved at a notice, and left in time")


if __name__ == "__main__":
    harness.main(body)
