#!/usr/bin/env python3
"""A program with FSDP2 and tensor parallelism on 4 gloo ranks saves every step through perdure.torch and is killed at random moments. It resumes on
3 ranks: from the newest committed step, and its next losses are those of a run that nobody disturbed. For comparison the same program saves by
DCP's own writer, into a directory a step: how often the newest one cannot be loaded is printed.

usage: python_kills.py SOURCE [KILLS]

PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and NumPy. Exit 77: there is none.
"""
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
os.environ["OMP_NUM_THREADS"] = "1"
try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch", file=sys.stderr)
    sys.exit(77)

SOURCE = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402
import perdure.torch  # noqa: E402

STEPS, WIDTH = 120, 96
FORK = multiprocessing.get_context("fork")  # torch is imported once


def make_model(dp, tp):
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(24, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 24))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model, optimizer, step):
    """Every rank has the whole batch, so the loss does not depend on their number."""
    batch = torch.randn(12, 24, generator=torch.Generator().manual_seed(step))
    loss = (model(batch) - batch.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def rank_main(rank, dp, tp, path, launch, steps, saves):
    """Resumes if there is a checkpoint, and goes on for `steps`. Rank 0 writes a line for each one that is done, and saved.
    saves: by "perdure", by "dcp" itself, or not at all."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=dp * tp, init_method=f"file://{launch}.store")
    model, optimizer = make_model(dp, tp)
    begin = 0
    if saves != "dcp" and os.path.isdir(path) and perdure.list_checkpoints(path):
        parameters, moments = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": moments, "step": torch.tensor(0)}
        dcp.load(state, storage_reader=perdure.torch.Reader(path))
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
        begin = int(state["step"])
    dist.barrier()
    writer = perdure.torch.Writer(path, keep_last=3) if saves == "perdure" else None
    with open(f"{launch}.log", "a", buffering=1, encoding="ascii") as log:
        for step in range(begin, begin + steps):
            loss = train_step(model, optimizer, step)
            if saves:
                parameters, moments = get_state_dict(model, optimizer)
                state = {"model": parameters, "optimizer": moments, "step": torch.tensor(step + 1)}
            if saves == "dcp":
                dcp.save(state, checkpoint_id=f"{path}/step-{step + 1}")
            elif saves:
                writer.step = step + 1
                dcp.save(state, storage_writer=writer, planner=perdure.torch.Planner())
            if rank == 0:
                log.write(json.dumps([step, loss]) + "\n")
    os._exit(0)


def start(dp, tp, *arguments):
    ranks = [FORK.Process(target=rank_main, args=(rank, dp, tp, *arguments)) for rank in range(dp * tp)]
    for rank in ranks:
        rank.start()
    return ranks


def end(ranks):
    for rank in ranks:
        rank.join(300)
        assert rank.exitcode == 0, rank.exitcode


def read_log(launch):
    with open(f"{launch}.log", encoding="ascii") as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def kill_at_random(draw, path, launch, saves):
    """Returns the newest step that a save of the 4 ranks had finished."""
    ranks = start(2, 2, path, launch + "-4", STEPS, saves)
    while not (os.path.exists(f"{launch}-4.log") and read_log(launch + "-4")):
        assert all(rank.is_alive() for rank in ranks), [rank.exitcode for rank in ranks]
        time.sleep(0.01)
    time.sleep(draw.random() * 0.4)
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == -signal.SIGKILL, rank.exitcode
    return read_log(launch + "-4")[-1][0] + 1


def newest_of_dcp_loads(path):
    """Whether the newest directory that DCP's own writer began can be loaded: .metadata is what it writes last."""
    newest = max(int(name.removeprefix("step-")) for name in os.listdir(path))
    return os.path.exists(os.path.join(path, f"step-{newest}", ".metadata"))


def one_kill(draw, path, launch, losses):
    """Returns the newest step when it was killed."""
    committed = kill_at_random(draw, path, launch, "perdure")
    newest = perdure.list_checkpoints(path)[0].step
    assert newest in (committed, committed + 1), (committed, newest)
    with perdure.open(path) as c:
        c.verify()
    end(start(3, 1, path, launch + "-3", 3, None))
    resumed = read_log(launch + "-3")
    assert [step for step, _ in resumed] == [newest, newest + 1, newest + 2], (newest, resumed)
    for step, loss in resumed + read_log(launch + "-4"):
        assert abs(loss - losses[step]) < 1e-6, (step, loss, losses[step])
    return newest


def main(directory, kills):
    seed = int(os.environ.get("PERDURE_TEST_SEED", time.time_ns() % 10**6))
    print(f"seed {seed}", flush=True)
    draw, path = random.Random(seed), os.path.join(directory, "saved")
    end(start(2, 2, os.path.join(directory, "nothing"), os.path.join(directory, "undisturbed"), STEPS + 3, None))
    losses = dict(read_log(os.path.join(directory, "undisturbed")))
    for kill in range(kills):
        newest = one_kill(draw, path, os.path.join(directory, str(kill)), losses)
        if newest > STEPS // 2:  # the next one begins anew
            shutil.rmtree(path)
    print(f"ok: {kills} kills, each resumed from the newest committed step", flush=True)
    torn = 0
    for kill in range(kills):
        kill_at_random(draw, theirs := os.path.join(directory, f"dcp-{kill}"), os.path.join(directory, f"theirs-{kill}"), "dcp")
        torn += not newest_of_dcp_loads(theirs)
        shutil.rmtree(theirs)
    print(f"DCP's own writer: after {torn} of {kills} kills the newest directory cannot be loaded")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as workspace:
        main(workspace, int(sys.argv[2]) if len(sys.argv) > 2 else 100 if int(os.environ.get("PERDURE_TEST_SCALE", "1")) >= 10 else 3)
