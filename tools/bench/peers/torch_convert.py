"""PyTorch's dcp_to_torch_save: a distributed checkpoint of a Llama and its optimizer becomes one file."""
import subprocess
import sys

import peer

CHECKS = "perdure verifies, checksums, reads back what it wrote and holds megabytes instead of all of it"
UNFAIR = {"dcp_to_torch_save; ckpt import": f"one state in, the same bytes out, fsync at the end of both, packages imported before; {CHECKS}",
          "dcp_to_torch_save as it is started; ckpt import": f"both as a user starts them, theirs with its imports; {CHECKS}"}


def prepare(room):
    import models
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    source, target = room.at("dcp"), room.at("one.pt")
    model = models.llama(room.bytes, source)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    dcp.save({"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=source)
    models.llama_config(room.bytes, source)

    def convert():
        dcp_to_torch_save(source, target)
        peer.sync(target)

    def start():
        subprocess.run([sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", source, target], check=True,
                       capture_output=True)
        peer.sync(target)

    def seconds_of(function):
        peer.remove(target)
        peer.forget(source)
        return peer.timed(function)

    def theirs():
        return dict(zip(UNFAIR, (seconds_of(convert), seconds_of(start))))

    def ours():
        peer.remove(room.at("store"))
        peer.forget(source)
        seconds, moved = room.conversion("ckpt", "import", source, room.at("store"))
        room.moved = dict.fromkeys(UNFAIR, moved)
        return dict.fromkeys(UNFAIR, seconds)

    return theirs, ours


peer.main("torch DCP", prepare, UNFAIR)
