"""Hosts out of namespaces: each has its own network, mounts, processes, name, /dev/shm and disk, and hangs on one switch. Needs root.

An agent in each host (namespaces_agent.py) starts commands that others send it, in place of ssh. A host is lost by the end of all its
processes, with or without its cable pulled before, and may come back: with its disk, without what was in its memory.
"""
import ctypes
import os
import signal
import subprocess
import sys

import harness

AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "namespaces_agent.py")
PREFIX = "10.77.0."


def child_of(process):
    """The process that is number one of the new namespace."""
    path = f"/proc/{process.pid}/task/{process.pid}/children"
    return int(harness.wait_for(lambda: harness.read(path).split(), "a namespace's first process")[0])


def end_with_parent():
    """Namespaces of a test that was killed go with it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def can_make():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--ipc", "--fork", "sh", "-c",
                                                 "mount -t proc proc /proc && ip link add br0 type bridge"],
                                                capture_output=True, check=False).returncode == 0


def run(pid, *command):
    return subprocess.run(["nsenter", "-t", str(pid), "-n", "-m", "-u", "-p", "-i", *command], check=True, capture_output=True)


class Network:
    def __init__(self, root, names):
        """`root`: a directory that all hosts see, but for root/disk, which each has for itself."""
        self.root, self.names, self.pids, self.agents, self.processes = root, names, {}, {}, []
        os.makedirs(os.path.join(root, "disk"))
        switch = subprocess.Popen(["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"], preexec_fn=end_with_parent)
        self.processes.append(switch)
        self.switch = child_of(switch)
        with open(os.path.join(root, "etc-hosts"), "w", encoding="utf-8") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"{self.address(n)} {n}\n" for n in names))
        self.on_switch("ip", "link", "add", "br0", "type", "bridge")
        self.on_switch("ip", "link", "set", "br0", "up")
        for name in names:
            self.boot(name)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in self.processes:
            process.kill()  # and what is in it: --kill-child
        for process in self.processes:
            process.wait()

    def on_switch(self, *command):
        subprocess.run(["nsenter", "-t", str(self.switch), "-n", *command], check=True)

    def address(self, name):
        return PREFIX + str(1 + self.names.index(name))

    def boot(self, name):
        disk = os.path.join(self.root, f"disk-{name}")
        os.makedirs(disk, exist_ok=True)
        session = f"/tmp/ompi.{name}.0"  # Open MPI's, by host and process: another test's host of this name has the same numbers
        script = (f"mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs -o size=512m tmpfs /dev/shm && hostname {name} && "
                  f"mkdir -p {session} && mount -t tmpfs tmpfs {session} && "
                  f"mount --bind {disk} {self.root}/disk && mount --bind {self.root}/etc-hosts /etc/hosts && exec sleep infinity")
        process = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", script],
                                   stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)
        self.processes.append(process)
        pid = self.pids[name] = child_of(process)
        harness.wait_for(lambda: harness.read(f"/proc/{pid}/cmdline").startswith("sleep"), f"host {name} is up")
        cable = f"v{self.names.index(name)}"
        # The same address of Ethernet as before: others know it still.
        self.on_switch("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "address",
                       f"02:00:00:00:00:{1 + self.names.index(name):02x}", "netns", str(pid))
        self.on_switch("ip", "link", "set", cable, "master", "br0", "up")
        run(pid, "ip", "addr", "add", self.address(name) + "/24", "dev", "eth0")
        run(pid, "ip", "link", "set", "eth0", "up")
        run(pid, "ip", "link", "set", "lo", "up")
        self.agents[name] = self.popen(name, [sys.executable, "-ES", AGENT, "serve"])
        harness.wait_for(lambda: subprocess.run(["nsenter", "-t", str(pid), "-n", sys.executable, "-ES", AGENT, self.address(name), "true"],
                                                capture_output=True, check=False).returncode == 0, f"the agent of {name} answers")

    def popen(self, name, command, **options):
        return subprocess.Popen(["nsenter", "-t", str(self.pids[name]), "-n", "-m", "-u", "-p", "-i", *command], **options)

    def block(self, name, port):
        """The host cannot connect to that port of any other: its own kernel drops what goes there."""
        run(self.pids[name], "ip", "rule", "add", "ipproto", "tcp", "dport", str(port), "blackhole")

    def drop(self, name, to):
        """What the host sends to that one goes nowhere, and nobody says so; what comes from there arrives."""
        run(self.pids[name], "ip", "neigh", "replace", self.address(to), "lladdr", "02:00:00:00:ff:ff", "dev", "eth0", "nud", "permanent")

    def mend(self, name, to):
        run(self.pids[name], "ip", "neigh", "del", self.address(to), "dev", "eth0")

    def name(self, name, alias, address):
        """To that host the name is that of this address; to others it is what it was."""
        file = f"/dev/shm/hosts-{alias}"
        run(self.pids[name], "sh", "-c", f"(echo {address} {alias}; cat /etc/hosts) > {file} && mount --bind {file} /etc/hosts")

    def hide(self, name, path):
        """The host has no such program."""
        run(self.pids[name], "mount", "--bind", "/dev/null", path)

    def replace(self, name, path, other):
        run(self.pids[name], "mount", "--bind", other, path)

    def freeze(self, name):
        """All processes of the host stop, but its first."""
        run(self.pids[name], "sh", "-c", "kill -STOP -1")

    def thaw(self, name):
        run(self.pids[name], "sh", "-c", "kill -CONT -1")
        self.agents[name].send_signal(signal.SIGCONT)  # nsenter stops with what it has started

    def lose(self, name, is_cable_pulled=False):
        """All its processes end; with the cable pulled nobody hears of it."""
        pid = self.pids.pop(name)
        if is_cable_pulled:
            self.on_switch("ip", "link", "del", f"v{self.names.index(name)}")
        os.kill(pid, signal.SIGKILL)
        harness.wait_for(lambda: not os.path.exists(f"/proc/{pid}"), f"host {name} is gone")
        harness.wait_for(lambda: f"v{self.names.index(name)}@" not in subprocess.run(
            ["nsenter", "-t", str(self.switch), "-n", "ip", "-o", "link"], capture_output=True, text=True, check=True).stdout, "its cable is gone")
