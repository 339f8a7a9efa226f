"""A run directory as a run leaves it, without the run: metrics.jsonl and events.jsonl of so many steps, starts and layouts, by seed.

synthetic_run.py DIRECTORY STEPS [SEED]"""
import json
import math
import os
import random
import sys

LAYOUTS = [{"ranks": 8, "dp": 8, "tp": 1, "pp": 1}, {"ranks": 6, "dp": 3, "tp": 2, "pp": 1}, {"ranks": 4, "dp": 1, "tp": 2, "pp": 2}]
CAUSES = ["rank 3 (process 4711) died: killed by SIGKILL", "rank 1: /nvme/x/checkpoints: writing a shard: Input/output error",
          "all ranks saved and left, as asked", "rank 5 fell silent for 120 s: its host is gone"]
TIERS = ["/dev/shm/mine", "/nvme/mine/checkpoints", "/shared/mine"]
GIB = 1 << 30


def start_events(out, clock, fence, layout, step):
    out.write(json.dumps({"event": "start", "time": clock, "restart": fence - 1, "ranks": layout["ranks"], "layout": "", "transport": "mpi",
                          "from_step": step or None, "process": 1, "host": "somewhere"}) + "\n")
    out.write(json.dumps({"event": "open", "time": clock + 20, "fence": fence, "step": step, "lineage": 1, "resumed": step > 0, "damaged": 0,
                          **layout, "hosts": max(1, layout["ranks"] // 4), "threads": 4, "sp": 1, "zero_stage": 3, "device": "CPU",
                          "parameters": 124_000_000, "planned_bytes": 20 * GIB // layout["ranks"], "checkpoint_bytes": 1_488_000_000,
                          "flops_per_token": 7.5e8, "tiers": [{"dir": d, "in_memory": d.startswith("/dev")} for d in TIERS]}) + "\n")


def row_of(step, fence, clock, layout, draw, newest):
    seconds = 0.4 * 8 / layout["ranks"] * (1 + 0.05 * draw.gauss(0, 1)) * (6 if draw.random() < 0.001 else 1)
    tokens = 65536
    row = {"step": step, "loss": 2.9 + 8 * math.exp(-step / 600) + 0.05 * draw.gauss(0, 1) + (2.5 if draw.random() < 0.0005 else 0),
           "loss_bits": "0" * 16, "gradient_norm": 0.4 + 4 * math.exp(-step / 300) + abs(0.1 * draw.gauss(0, 1)),
           "learning_rate": 3e-4 * min(1, step / 100), "tokens": tokens, "seconds": seconds,
           "stages": {"forward": 0.3 * seconds, "backward": 0.55 * seconds, "sums": 0.06 * seconds, "update": 0.05 * seconds},
           "tokens_per_second": tokens / seconds, "gemm_share": min(1, 0.62 + 0.03 * draw.gauss(0, 1)),
           "memory_bytes": int(19.2 * GIB / layout["ranks"] + 1e6 * draw.random()), "last_checkpoint": newest[0], "eta_seconds": 1,
           "ranks": layout["ranks"], "fence": fence, "time": round(clock + seconds, 3),
           "tiers": [{"newest": n} for n in newest]}
    if draw.random() < 0.002:
        row["gradient_norm"] *= 40
    if step % 200 == 0:
        row["validation_loss"] = row["loss"] + 0.08
    if step % 50 == 0:
        row.update(save_seconds=1.2 + draw.random(), stall_seconds=0.02 * draw.random())
    return row, clock + seconds


def write(directory, steps, seed=1, starts=6):
    draw = random.Random(seed)
    os.makedirs(directory, exist_ok=True)
    clock, step, newest = 1.7e9, 0, [0, 0, 0]
    with open(os.path.join(directory, "events.jsonl"), "w") as events, open(os.path.join(directory, "metrics.jsonl"), "w") as metrics:
        for fence in range(1, starts + 1):
            layout = LAYOUTS[(fence - 1) // 2 % len(LAYOUTS)]
            start_events(events, clock, fence, layout, step)
            clock += 25
            until = steps if fence == starts else steps * fence // starts + draw.randrange(5, 45)
            while step < until:
                step += 1
                newest = [step // every * every for every in (10, 50, 500)]
                row, clock = row_of(step, fence, clock, layout, draw, newest)
                metrics.write(json.dumps(row) + "\n")
            over = fence == starts
            events.write(json.dumps({"event": "end", "time": clock + 2, "restart": fence - 1, "status": "PD_OK" if over else "PD_PEER_LOST",
                                     "exit_code": 0 if over else 75, "cause": "" if over else CAUSES[(fence - 1) % len(CAUSES)],
                                     "restarts": not over}) + "\n")
            clock += draw.choice([3, 40, 600])
            step = step if over else newest[1]
    return step


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
