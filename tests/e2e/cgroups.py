"""Control groups of a test's own, version 1 or 2, below the one we are in."""
import os
import time


class Skipped(Exception):
    pass


class Group:
    """A child of our group of one controller: "memory" or "cpu"."""

    def __init__(self, controller="memory"):
        self.path = None
        if os.geteuid() != 0:
            raise Skipped(f"making a {controller} cgroup takes root")
        self.version, parent = self.find(controller)
        path = os.path.join(parent, f"perdure-test-{os.getpid()}")
        try:
            if self.version == 2:
                self.write(os.path.join(parent, "cgroup.subtree_control"), f"+{controller}")
            os.mkdir(path)
        except OSError as error:
            raise Skipped(f"no {controller} cgroup can be made below {parent}: {error.strerror}") from error
        self.path = path

    @staticmethod
    def find(controller):
        own = {}
        with open("/proc/self/cgroup", encoding="utf-8") as f:
            for line in f:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                own.update((name, path) for name in controllers.split(","))
        control = {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us"}[controller]
        for version, root, key, file in ((1, f"/sys/fs/cgroup/{controller}", controller, control), (2, "/sys/fs/cgroup", "", "cgroup.controllers")):
            if not os.path.exists(os.path.join(root, file)):
                continue
            mine = root + own.get(key, "/")
            return version, mine if os.path.isdir(mine) else root
        raise Skipped(f"no {controller} cgroup is mounted at /sys/fs/cgroup")

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def set(self, name, value):
        self.write(os.path.join(self.path, name), str(value))

    def set_limit(self, limit):
        """Of memory, swap included."""
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if self.version == 1 else ["memory.max", "memory.swap.max"]
        self.set(names[0], limit)
        if os.path.exists(os.path.join(self.path, names[1])):
            self.set(names[1], limit if self.version == 1 else 0)

    def set_cores(self, cores):
        if self.version == 1:
            self.set("cpu.cfs_quota_us", int(cores * 100000))
        else:
            self.set("cpu.max", f"{int(cores * 100000)} 100000")

    def join(self):
        self.set("cgroup.procs", os.getpid())

    def peak(self):
        path = os.path.join(self.path, "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as f:
            return int(f.read())

    def remove(self):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)
