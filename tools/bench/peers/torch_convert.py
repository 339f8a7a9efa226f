"""PyTorch's dcp_to_torch_save: a distributed checkpoint of a Llama and its optimizer becomes one file."""
import peer

UNFAIR = {"dcp_to_torch_save; ckpt import": "one state in, the same bytes out, fsync at the end of both, packages imported before; perdure verifies, "
                                            "checksums, reads back what it wrote and holds megabytes instead of all of it"}


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

    def theirs():
        peer.remove(target)
        peer.forget(source)
        return {name: peer.timed(convert) for name in UNFAIR}

    def ours():
        peer.remove(room.at("store"))
        peer.forget(source)
        return {name: room.seconds_of_run("ckpt", "import", source, room.at("store")) for name in UNFAIR}

    return theirs, ours


peer.main("torch DCP", prepare, UNFAIR)
