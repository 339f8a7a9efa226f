"""PyTorch's distributed checkpoints in a bucket, by Amazon's connector over its runtime in C. The server is on this machine: weed, and one
of the tests' own in memory, which digests nothing, so that the programs bound the time."""
import os
import shutil
import sys

import peer

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tests", "objects"))

ROWS = {f"{row} to {name}" if row == "save" else f"{row} from {name}": (row, server) for name, server in (("weed", "weed"), ("memory", "own"))
        for row in ("save", "load")}
UNFAIR = {row: "perdure saves into memory first, which it counts, though training goes on meanwhile; it verifies what it sends, with a checksum for "
               "each part, which theirs sends none of" if what == "save" else "perdure verifies every checksum" for row, (what, _) in ROWS.items()}


def prepare(room):
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client
    from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
    import stores
    import torch
    import torch.distributed.checkpoint as dcp
    servers = {name: room.stack.enter_context(stores.opened(name, is_open=True)) for name in ("weed", "own")}
    os.environ.update(servers["weed"].environment)
    state, memory = peer.state(torch, room.bytes), "/dev/shm" if shutil.disk_usage("/dev/shm").free > 4 * room.bytes else room.path
    config = S3ClientConfig(force_path_style=True, throughput_target_gbps=100.0)
    clients = {name: S3Client("us-east-1", endpoint=server.environment["AWS_ENDPOINT_URL_S3"], s3client_config=config)
               for name, server in servers.items()}

    def at(server, storage, **options):
        made = storage("us-east-1", f"s3://{stores.BUCKET}/dcp", s3client_config=config, **options)
        made.fs._client = clients[server]  # its constructor takes no endpoint
        return made

    def theirs():
        return {row: peer.timed(dcp.save, state, storage_writer=at(server, S3StorageWriter, thread_count=room.threads, overwrite=True)) if what == "save" else
                peer.timed(dcp.load, state, storage_reader=at(server, S3StorageReader)) for row, (what, server) in ROWS.items()}

    def ours():
        number, seconds = peer.bytes_in(state), {}
        for name, server in servers.items():
            os.environ.update(server.environment)
            said = room.run("bench", "objects", f"s3://{stores.BUCKET}/ours", "--pairs=1", f"--bytes={room.bytes}", f"--dir={memory}")
            seconds[name] = {"save": said["save_seconds"] + number / said["upload_bytes_per_second"], "load": number / said["download_bytes_per_second"]}
        return {row: seconds[server][what] for row, (what, server) in ROWS.items()}

    return theirs, ours


if __name__ == "__main__":
    peer.main("torch DCP, s3torchconnector", prepare, UNFAIR)
