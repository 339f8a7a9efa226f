"""DeepSpeed's zero_to_fp32 and ds_to_universal, on what two ranks of ZeRO-3 saved of a Llama."""
import argparse
import os
import subprocess
import sys

import peer

UNFAIR_TO_US = "perdure verifies and reads back what it wrote"
IMPORTED = f"fsync at the end of both, packages imported before; {UNFAIR_TO_US}"
STARTED = f"both as a user starts them, theirs with its imports; fsync at the end of both; {UNFAIR_TO_US}"
UNFAIR = {"zero_to_fp32; ckpt export": f"parameters as safetensors; {IMPORTED}",
          "zero_to_fp32 as it is started; ckpt export": STARTED,
          "ds_to_universal; ckpt export": IMPORTED,
          "ds_to_universal as it is started; ckpt export": STARTED,
          "ds_to_universal; ckpt reshard": f"what makes another layout of one's own files; perdure loads any without it; {IMPORTED}"}


def rank(directory, number):
    import deepspeed_here
    import models
    deepspeed = deepspeed_here.start()
    model = models.llama(int(number), directory)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})[0]
    import torch
    ids = torch.zeros((1, 8), dtype=torch.long)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(directory, tag="global_step1")


def prepare(room):
    import deepspeed_here  # noqa: F401
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
    import models
    import torch
    torch.set_num_threads(1)  # ds_to_universal forks, and OpenMP's threads do not survive it
    source, weights, universal, store = (room.at(name) for name in ("zero", "weights", "universal", "store"))
    peer.start_ranks(2, source, room.bytes)
    models.llama_config(room.bytes, source)
    room.run("ckpt", "import", source, store)

    def to_fp32():
        convert_zero_checkpoint_to_fp32_state_dict(source, weights, safe_serialization=True)
        peer.sync(weights)

    def to_universal():
        ds_to_universal.main(argparse.Namespace(input_folder=os.path.join(source, "global_step1"), output_folder=universal,
                                                num_extract_workers=room.threads, num_merge_workers=room.threads, keep_temp_folder=False,
                                                strict=True, inject_missing_state=False))
        peer.sync(universal)

    def started(output, *command):
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        peer.sync(output)

    def run(seconds_of, *outputs):
        for path in outputs:
            peer.remove(path)
        peer.forget(source)
        return seconds_of()

    def theirs():
        tag, workers = os.path.join(source, "global_step1"), str(room.threads)
        fp32 = run(lambda: peer.timed(to_fp32), weights)
        fp32_started = run(lambda: peer.timed(started, weights, os.path.join(source, "zero_to_fp32.py"), source, weights, "--safe_serialization"),
                           weights)
        made = run(lambda: peer.timed(to_universal), universal)
        made_started = run(lambda: peer.timed(started, universal, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", tag,
                                              "--output_folder", universal, "--num_extract_workers", workers, "--num_merge_workers", workers),
                           universal)
        return dict(zip(UNFAIR, (fp32, fp32_started, made, made_started, made)))

    def ours():
        out = {name: run(lambda: room.conversion("ckpt", "export", source, room.at(name), f"--format={name}"), room.at(name))
               for name in ("safetensors", "universal")}
        reshard = run(lambda: room.seconds_of_run("ckpt", "reshard", store, room.at("resharded"), "--layout=dp=4"), room.at("resharded"))
        rows = [*UNFAIR][:4]
        seconds, moved = zip(*(out[name] for name in ("safetensors", "safetensors", "universal", "universal")))
        room.moved = dict(zip(rows, moved))
        return dict(zip(UNFAIR, (*seconds, reshard)))

    return theirs, ours


if __name__ == "__main__":
    peer.main("DeepSpeed", prepare, UNFAIR, rank)
