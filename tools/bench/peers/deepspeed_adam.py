"""DeepSpeed's CPU Adam, the optimizer of ZeRO-Offload, on parameters and gradients in fp32."""
import peer

UNFAIR = {"CPU Adam": "the same arithmetic on the same bytes; perdure's memory lies on huge pages"}


def prepare(room):
    import deepspeed_here  # noqa: F401
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # compiles it for this processor
    torch.set_num_threads(room.threads)
    parameters = [torch.nn.Parameter(t) for t in peer.state(torch, room.bytes)["param"].values()]
    elements = sum(p.numel() for p in parameters)
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    optimizer = DeepSpeedCPUAdam(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer.step()
    return lambda: {"CPU Adam": peer.median_of(3, optimizer.step)}, lambda: {"CPU Adam": room.adam_seconds(elements)}


peer.main("DeepSpeed", prepare, UNFAIR)
