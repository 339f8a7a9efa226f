"""A training step of PyTorch on the processor, eager and by torch.compile, in fp32: forward, backward, clipping, fused AdamW."""
import peer

UNFAIR = {"step, eager": "one model, one micro-batch; perdure sums in a fixed order, so that its bits depend on no thread count",
          "step, torch.compile": "likewise; compiling is not counted"}


def make_step(torch, model, compiled, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model
    ids = torch.randint(0, model.config.vocab_size, (1, tokens + 1))

    def step():
        logits = forward(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    step()
    return step


def prepare(room):
    import models
    import torch
    torch.set_num_threads(room.threads)
    model = models.preset(room.preset, room.tokens)
    steps = {name: make_step(torch, model, name.endswith("compile"), room.tokens) for name in UNFAIR}

    def theirs():
        return {name: peer.median_of(3, step) for name, step in steps.items()}

    def ours():
        said = room.run("bench", "step", "--device=cpu", "--pairs=3", "--precision=fp32", f"--preset={room.preset}",
                        f"--tokens={room.tokens}", f"--threads={room.threads}")
        return dict.fromkeys(UNFAIR, said["step_seconds_fp32"])

    return theirs, ours


peer.main("torch", prepare, UNFAIR)
