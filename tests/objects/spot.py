#!/usr/bin/env python3
"""A spot machine and a bucket, as tools/launch/README.md shows it: its commands, word for word but for smaller sizes, and what spot.yaml runs
on the machine. A machine is a mount namespace with an empty /opt and /root; `aws` copies to and from the server of this folder and notes
what it starts. The first machine is killed and its disk lost; the second goes on with the bits of a quiet run.   Arguments: PERDURE"""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness  # noqa: E402
import peers  # noqa: E402
from answers import CLEAN  # noqa: E402
from server import Server  # noqa: E402

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml reads spot.yaml: apt-get install python3-yaml")
    sys.exit(77)

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools")
SMALLER = {"steps: 20000": "steps: 24", "preset: byte-10m": "{layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 16, ffn: 96, context: 64}",
           "every: 50": "every: 2", "every: 200": "every: 4"}
AWS = """#!/usr/bin/env python3
import sys, urllib.request
words = sys.argv[1:]
if words[:2] == ["ec2", "run-instances"]:
    open({started!r}, "a").write(words[words.index("--user-data") + 1].removeprefix("file://") + "\\n")
    sys.exit()
assert words[:2] == ["s3", "cp"] and len(words) == 4, words
def url(place):
    return {url!r} + "/" + place.removeprefix("s3://")
if words[2].startswith("s3://"):
    data = urllib.request.urlopen(url(words[2])).read()
    (sys.stdout.buffer if words[3] == "-" else open(words[3], "wb")).write(data)
else:
    data = (sys.stdin.buffer if words[2] == "-" else open(words[2], "rb")).read()
    urllib.request.urlopen(urllib.request.Request(url(words[3]), data=data, method="PUT")).close()
"""
INSIDE = 'mount --bind "$0/opt" /opt && mount --bind "$0/root" /root && cd "$1" && shift && exec "$@"'


def blocks():
    """What the README says to type."""
    text = harness.read(os.path.join(TOOLS, "launch/README.md"))
    section = re.search(r"^## A spot machine and a bucket\n(.*?)^## ", text, re.MULTILINE | re.DOTALL).group(1)
    for large, small in SMALLER.items():
        if large.startswith("preset"):
            large, small = "{" + large + "}", small
        if large not in section:
            raise harness.Failure(f"the README has no {large}")
        section = section.replace(large, small)
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


class Machine:
    def __init__(self, place, environment, user_data):
        self.path, self.environment = place, environment
        for name in ("opt", "root"):
            os.makedirs(os.path.join(place, name))
        with open(user_data, encoding="utf-8") as f:
            first = f.readline()
            cloud = yaml.safe_load(f)
        if first != "#cloud-config\n" or cloud["packages"] != ["awscli"]:
            raise harness.Failure(f"user data: {first} {cloud}")
        self.units, self.process, self.log = {os.path.basename(one["path"]): one["content"] for one in cloud["write_files"]}, None, place + ".log"
        for words in cloud["runcmd"]:
            if words[0] == "systemctl":
                self.systemctl(words)
            elif subprocess.run(self.words("/", words), env=environment, check=False).returncode:
                raise harness.Failure(f"{words} failed on the machine")

    def words(self, directory, words):
        return ["unshare", "-m", "sh", "-c", INSIDE, self.path, directory, *words]

    def systemctl(self, words):
        if words[1:] == ["daemon-reload"]:
            return
        lines = [line.split("=", 1) for line in self.units[words[-1]].splitlines() if "=" in line and line[0] != "#"]
        unit = dict(lines)
        given = dict(value.split("=", 1) for key, value in lines if key == "Environment")
        if words[1:3] != ["enable", "--now"] or (unit["Restart"], unit["RestartForceExitStatus"], unit["KillMode"]) != ("no", "75", "mixed"):
            raise harness.Failure(f"{words} {unit}")
        if not 3 <= int(unit["TimeoutStopSec"]) - int(given["PERDURE_GRACE_S"]) <= 15:
            raise harness.Failure(f"the unit gives {unit['TimeoutStopSec']} seconds")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.words(unit["WorkingDirectory"], shlex.split(unit["ExecStart"])), env={**self.environment, **given},
                                            stdout=log, stderr=log, start_new_session=True)

    def lose(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.path)

    @property
    def run(self):
        return os.path.join(self.path, "opt/perdure/run")


def committed(server):
    return {int(match.group(1)) for match in (re.match(r"run/step-0*(\d+)-\d+/commit\.h5$", key) for key in list(server.store.objects)) if match}


def main():
    if not peers.can_pretend():
        print("skipped: machines with disks of their own (mounting needs root)")
        sys.exit(77)
    first, second = blocks()
    with harness.Workspace(sys.argv[1]) as workspace, Server() as server:
        server.store.check_signatures = False  # of `aws` here; other tests check those of perdure
        checkout, started = workspace.directory("checkout"), os.path.join(workspace.path, "started")
        os.makedirs(os.path.join(checkout, "build"))
        shutil.copy(workspace.perdure, os.path.join(checkout, "build/perdure"))
        shutil.copytree(TOOLS, os.path.join(checkout, "tools"))
        with open(os.path.join(checkout, "text.txt"), "w", encoding="utf-8") as f:
            f.write(harness.text_of(60000))
        programs = workspace.directory("bin")
        os.makedirs(programs)
        with open(os.path.join(programs, "aws"), "w", encoding="utf-8") as f:
            f.write(AWS.format(started=started, url=server.url.rstrip("/")))
        os.chmod(os.path.join(programs, "aws"), 0o755)
        environment = {**CLEAN, **server.environment(), "PATH": f"{programs}:{os.environ['PATH']}", "PERDURE_PROGRESS": "off",
                       "PERDURE_METADATA": "http://127.0.0.1:9"}
        def shell(text):
            found = subprocess.run(["bash", "-eu", "-c", text], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
            if found.returncode:
                raise harness.Failure(f"{text}: exit {found.returncode}\n{found.stdout}{found.stderr}")
            return found.stdout
        on_machine = {key: value for key, value in environment.items() if key != "HOME"}  # as under systemd
        names = re.search(r"^bucket=.*$", first, re.MULTILINE).group(0)
        again = f"{names}\n{first[first.index('aws ec2 run-instances'):]}"
        print(shell(first), flush=True)
        quiet = workspace.directory("quiet")
        shell(f"build/perdure train run.yaml run.dir={quiet} data.train=text.txt checkpoint.tiers='[{{dir: {quiet}/checkpoints}}]' preempt.notice=")
        machines = []
        try:
            for number, text in enumerate((None, again)):
                if text:
                    shell(text)
                user_data = harness.read(started).splitlines()
                if len(user_data) != number + 1:
                    raise harness.Failure(f"{user_data}: machines were started")
                machines.append(Machine(workspace.directory("machine"), on_machine, os.path.join(checkout, user_data[-1])))
                machine = machines[-1]
                if number:
                    break
                def look():
                    if machine.process.poll() is not None:
                        raise harness.Failure(f"the first machine's run ended with {machine.process.returncode}\n{harness.read(machine.log)}")
                    return max(committed(server), default=0) >= 4
                harness.wait_for(look, "step 4 in the bucket")
                machine.lose()
            stored = max(committed(server))
            listed = shell(f"{names}\n{second}")
            code = machine.process.wait(timeout=harness.PATIENCE)
            said = harness.read(machine.log)
            if code or not re.search(r"resumed at step \d+", said) or f"step-{stored:012}" not in listed:
                raise harness.Failure(f"the second machine: exit {code}\n{listed}\n{said}")
            found, expected = harness.losses(machine.run), harness.losses(quiet)
            if any(expected[step] != bits for step, bits in found.items()) or max(found) != max(expected) or min(found) <= 4:
                raise harness.Failure("other bits than of a quiet run")
            print(f"the first machine was lost, step {stored} was in the bucket: the second one went on from it, same bits")
        finally:
            for machine in machines:
                if machine.process and machine.process.poll() is None:
                    machine.lose()


if __name__ == "__main__":
    main()
