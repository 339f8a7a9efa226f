"""PyTorch's distributed checkpoints: one rank, and three that save for two that load."""
import time

import peer

UNFAIR = {"save": "both end with fsync, DCP by default; perdure checksums every 64 KiB, DCP has a CRC-32 of each tensor",
          "load": "both from the disk; perdure verifies every checksum",
          "load on 2 ranks what more saved": "from 3 ranks in DCP, from 6 (dp 3, tp 2) in perdure; DCP's ranks are processes, perdure's here are threads"}


def open_ranks():
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    return torch, torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def rank(what, directory, number):
    """Rows over all ranks, as FSDP2 cuts them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor
    torch, mesh = open_ranks()
    state = {kind: {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in tensors.items()}
             for kind, tensors in peer.state(torch, int(number)).items()}
    torch.distributed.barrier()
    start = time.perf_counter()
    (dcp.save if what == "save" else dcp.load)(state, checkpoint_id=directory)
    torch.distributed.barrier()
    seconds = time.perf_counter() - start
    torch.distributed.destroy_process_group()
    return seconds


def prepare(room):
    import torch
    import torch.distributed.checkpoint as dcp
    state, path, ranks = peer.state(torch, room.bytes), room.at("dcp"), room.at("ranks")
    peer.start_ranks(3, "save", ranks, room.bytes)

    def theirs():
        peer.remove(path)
        saved = peer.timed(dcp.save, state, checkpoint_id=path)
        peer.forget(path)
        loaded = peer.timed(dcp.load, state, checkpoint_id=path)
        peer.forget(ranks)
        return {"save": saved, "load": loaded, "load on 2 ranks what more saved": peer.start_ranks(2, "load", ranks, room.bytes)}

    def ours():
        number, said = peer.bytes_in(state), room.bench("ckpt")
        return {"save": number / said["save_bytes_per_second"], "load": number / said["load_bytes_per_second"],
                "load on 2 ranks what more saved": number / room.bench("reshard")["load_bytes_per_second"]}

    return theirs, ours


if __name__ == "__main__":
    peer.main("torch DCP", prepare, UNFAIR, rank)
