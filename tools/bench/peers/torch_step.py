"""A training step of PyTorch on the processor, eager and by torch.compile, in fp32: forward, backward, clipping, fused AdamW."""
import peer

MOE_LENGTH = 512  # tokens of a sequence of --preset=moe; other presets have one sequence
UNFAIR = {"step, eager": "one model, one micro-batch; perdure sums in a fixed order, so that its bits depend on no thread count",
          "step, torch.compile": "likewise; compiling is not counted",
          "step, eager, a loop over experts": "likewise; experts_implementation=eager, where the row before has transformers' default"}
PLAIN, COMPILED, LOOP = UNFAIR


def make_step(torch, model, compiled, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model
    length = MOE_LENGTH if hasattr(model.config, "num_local_experts") else tokens
    ids = torch.randint(0, model.config.vocab_size, (tokens // length, length + 1))

    def step():
        logits = forward(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
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
    has_experts = room.preset == "moe"
    rows = [PLAIN, LOOP] if has_experts else [PLAIN, COMPILED]
    steps = {name: make_step(torch, model, name == COMPILED, room.tokens) for name in rows}
    default = model.config._experts_implementation if has_experts else None  # grouped products, where the model has them

    def seconds(name, step):
        if has_experts:
            model.set_experts_implementation("eager" if name == LOOP else default)
        return peer.median_of(3, step)

    def theirs():
        return {name: seconds(name, step) for name, step in steps.items()}

    def ours():
        said = room.run("bench", "step", "--device=cpu", "--pairs=3", "--precision=fp32", f"--preset={room.preset}",
                        f"--tokens={room.tokens}", f"--threads={room.threads}")
        return dict.fromkeys(rows, said["step_seconds_fp32"])

    return theirs, ours


peer.main("torch", prepare, UNFAIR)
