"""torch.save and torch.load: one file, by one process."""
import peer

UNFAIR = {"save": "both end with fsync; perdure checksums every 64 KiB and commits, torch.save has a CRC-32 of each tensor",
          "save, torch without fsync": "perdure ends with fsync, torch.save with the page cache: a crash loses it",
          "load": "both from the disk; perdure verifies every checksum, torch.load none"}


def prepare(room):
    import torch
    state, path = peer.state(torch, room.bytes), room.at("state.pt")

    def save():
        torch.save(state, path)
        peer.sync(path)

    def theirs():
        peer.remove(path)
        cached = peer.timed(torch.save, state, path)
        peer.remove(path)
        synced = peer.timed(save)
        peer.forget(path)
        return {"save": synced, "save, torch without fsync": cached, "load": peer.timed(torch.load, path)}

    def ours():
        said, number = room.bench("ckpt"), peer.bytes_in(state)
        save_s = number / said["save_bytes_per_second"]
        return {"save": save_s, "save, torch without fsync": save_s, "load": number / said["load_bytes_per_second"]}

    return theirs, ours


peer.main("torch.save", prepare, UNFAIR)
