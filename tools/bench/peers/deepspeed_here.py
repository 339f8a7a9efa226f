"""DeepSpeed on the processor."""
import os
import sys

import peer

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def start():
    """As one of the ranks that the environment says; without them as the only one."""
    import deepspeed
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", peer.free_port())):
        os.environ.setdefault(name, str(value))
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles for a minute
    deepspeed.init_distributed("gloo")
    return deepspeed
