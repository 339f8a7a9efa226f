"""DeepSpeed's optimizer step of ZeRO-3 with its state on NVMe (async_io, pipelined, CPU Adam), bf16 over fp32 state."""
import peer

UNFAIR = {"step, state on NVMe": "both read and write 12 bytes a parameter past the page cache, without fsync; DeepSpeed writes in place, so that a crash "
                                 "costs the state, and also swaps gradients in; perdure writes a new generation and checksums it"}
WIDTH, GROUPS = 1024, 8


def prepare(room):
    import deepspeed_here
    deepspeed = deepspeed_here.start()
    import torch
    torch.set_num_threads(room.threads)
    layers = max(GROUPS, room.bytes // 12 // WIDTH ** 2)
    parameters = layers * WIDTH ** 2
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True, "single_submit": False, "intra_op_parallelism": room.threads},
        "zero_optimization": {"stage": 3, "sub_group_size": parameters // GROUPS, "offload_optimizer": {
            "device": "nvme", "nvme_path": room.path, "pin_memory": False, "buffer_count": 16, "pipeline_read": True, "pipeline_write": True}}})[0]
    ids = torch.ones((1, WIDTH), dtype=torch.bfloat16)

    def step():
        engine.backward(engine(ids).float().sum())
        return peer.timed(engine.step)

    step()  # makes the files

    def ours():
        said = room.bench("offload")
        return {name: said["step_seconds"] * parameters / said["parameters"] for name in UNFAIR}

    return lambda: {name: step() for name in UNFAIR}, ours


peer.main("DeepSpeed", prepare, UNFAIR)
