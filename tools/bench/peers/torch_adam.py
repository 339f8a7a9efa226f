"""torch.optim.AdamW on the processor, fused and foreach, on parameters and gradients in fp32."""
import peer

UNFAIR = {"AdamW, fused": "the same arithmetic on the same bytes; perdure's memory lies on huge pages",
          "AdamW, foreach": "likewise; PyTorch's default, one pass over memory for each operation"}


def prepare(room):
    import torch
    torch.set_num_threads(room.threads)
    parameters = [torch.nn.Parameter(t) for t in peer.state(torch, room.bytes)["param"].values()]
    elements = sum(p.numel() for p in parameters)
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    steps = {}
    for how in ("fused", "foreach"):
        steps[how] = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **{how: True}).step
        steps[how]()  # makes the moments

    def theirs():
        return {f"AdamW, {how}": peer.median_of(3, step) for how, step in steps.items()}

    def ours():
        return dict.fromkeys(UNFAIR, room.adam_seconds(elements))

    return theirs, ours


peer.main("torch", prepare, UNFAIR)
