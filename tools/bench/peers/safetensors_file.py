"""safetensors: one file, by one process."""
import peer

UNFAIR = {"save": "both end with fsync; perdure checksums and commits, a safetensors file has no checksum",
          "load": "both from the disk; perdure verifies every checksum"}


def prepare(room):
    import safetensors.torch
    import torch
    state, path = peer.state(torch, room.bytes), room.at("state.safetensors")
    flat = {f"{kind}.{name}": tensor for kind, tensors in state.items() for name, tensor in tensors.items()}

    def save():
        safetensors.torch.save_file(flat, path)
        peer.sync(path)

    def load():
        for tensor in safetensors.torch.load_file(path).values():
            tensor.clone()  # a mapped file is read when it is touched

    def theirs():
        peer.remove(path)
        saved = peer.timed(save)
        peer.forget(path)
        return {"save": saved, "load": peer.timed(load)}

    def ours():
        said, number = room.bench("ckpt"), peer.bytes_in(state)
        return {"save": number / said["save_bytes_per_second"], "load": number / said["load_bytes_per_second"]}

    return theirs, ours


peer.main("safetensors", prepare, UNFAIR)
