#!/usr/bin/env python3
"""torchtitan through perdure.titan, with the configuration and the command of README.md: its trainer on two gloo ranks is killed and goes on from
the newest checkpoint with the same losses; its checkpoint manager, optimizers and schedulers alone save an FSDP2 model on 4 ranks and load it on 3.

usage: python_titan.py SOURCE

torchtitan trains on GPUs. SITE and SMALL make it train on a CPU: what they replace has nothing to do with checkpoints. PERDURE_LIBRARY is
libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and torchtitan 0.3. Exit 77: there is none.
"""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import ConfigManager
    from tokenizers import Tokenizer, models, pre_tokenizers
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch and torchtitan", file=sys.stderr)
    sys.exit(77)

SOURCE = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402
import perdure.titan  # noqa: E402

STEPS, CUT, KEPT = 9, 6, 2
TRAINED, KILLED = 10, 8

# sitecustomize.py: PyTorch's CPU has what torchtitan asks a GPU for.
SITE = """
import sys
if "torchtitan" in " ".join(sys.orig_argv):
    import collections, types
    import torch, torch._utils
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda *_: "CPU"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34)
    torch.cpu.memory_stats = lambda *_: collections.Counter()
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
"""
# The configuration of README.md for less data, attention that has a backward pass on CPUs, and sums that gloo has.
SMALL = """
import types
import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.models.common.attention import FlexAttention
import my_configs

def attention(q, k, v, *, scale, enable_gqa, **_):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    return out, types.SimpleNamespace(lse=None)

FlexAttention._compiled_flex_attn = attention
divide = FSDPModule.set_gradient_divide_factor

def divide_after(self, factor):
    divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)

FSDPModule.set_gradient_divide_factor = divide_after

def small():
    config = my_configs.debug()
    config.training.seq_len, config.training.local_batch_size, config.training.steps = 64, 1, %d
    config.validator.enable = False
    config.checkpoint.interval = 3
    return config
"""


class Count:
    """Something with a state of its own: a data loader, the trainer."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Run:
    """A trainer's parts."""

    def __init__(self, directory, config):
        torch.manual_seed(3)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.model = torch.nn.Sequential(torch.nn.Linear(13, 17), torch.nn.Tanh(), torch.nn.Linear(17, 5))
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer, mesh=mesh)
        self.optimizers = default_adamw(lr=1e-2).build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=4).build(optimizers=self.optimizers, training_steps=STEPS)
        self.loader, self.state = Count(), Count()
        self.manager = config.build(dataloader=self.loader, model_parts=[self.model], optimizers=self.optimizers, lr_schedulers=self.schedulers,
                                    states={"train_state": self.state}, sd_adapter=None, base_folder=directory)

    def train(self, until, save=True):
        losses = []
        while self.state.count < until:
            batch = torch.randn(24, 13, generator=torch.Generator().manual_seed(self.loader.count))
            loss = self.model(batch).square().mean()
            self.optimizers.zero_grad()
            loss.backward()
            self.optimizers.step()
            self.schedulers.step()
            self.state.count += 1
            self.loader.count += 1
            losses.append(loss.item())
            if save:
                self.manager.save(self.state.count, last_step=self.state.count == STEPS)
        self.manager.maybe_wait_for_saving()
        return losses


def begin(rank, size, directory, name):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{directory}/{name}")
    sys.path.insert(0, directory)
    with open(os.path.join(directory, "words"), encoding="utf-8") as f:
        config = ConfigManager().parse_args(f.read().split()).checkpoint
    assert type(config) is perdure.titan.CheckpointManager.Config and config.enable and config.async_mode == "async", config
    config.interval, config.keep_latest_k, config.last_save_model_only = 2, KEPT, False
    return config


def save(rank, size, directory):
    config = begin(rank, size, directory, "save")
    run = Run(directory, config)
    assert not run.manager.load()
    run.train(CUT)
    run.manager.close()
    torch.save(run.train(STEPS, save=False), os.path.join(directory, "losses.pt"))
    dist.destroy_process_group()


def load(rank, size, directory):
    config = begin(rank, size, directory, "load")
    run = Run(directory, config)
    assert run.manager.load() and (run.state.count, run.loader.count) == (CUT, CUT)
    run.state.count = -1
    assert run.manager.load(step=CUT - 2) and run.state.count == CUT - 2
    assert run.manager.load(step=CUT)
    run.manager.save(CUT)  # once more: a new lineage, and nothing inside the old one
    losses, want = run.train(STEPS), torch.load(os.path.join(directory, "losses.pt"))
    assert torch.allclose(torch.tensor(losses), torch.tensor(want), atol=1e-6), (losses, want)
    run.manager.close()
    folder = os.path.join(directory, config.folder)
    assert [entry.step for entry in perdure.list_checkpoints(folder)] == [STEPS, STEPS - 1]
    theirs = CheckpointManager.Config(enable=True, folder="theirs", interval=1, last_save_model_only=False)
    old = Run(directory, theirs)
    old.manager.save(4)
    new = Run(directory, perdure.titan.CheckpointManager.Config(enable=True, folder="theirs"))
    new.state.count = -1
    assert new.manager.load() and new.state.count == 0  # a checkpoint of torchtitan's own
    far = Run(directory, perdure.titan.CheckpointManager.Config(enable=True, folder="none", initial_load_path=f"file://{directory}/theirs/step-4",
                                                                initial_load_model_only=False))
    far.state.count = -1
    assert far.manager.load() and far.state.count == 0  # the same, by a URL that fsspec reads and perdure does not
    try:
        perdure.titan.CheckpointManager.Config(enable=True, folder="gs://bucket/saved")
        raise AssertionError("a bucket as the folder")
    except ValueError as e:
        assert "name a folder" in str(e), e
    dist.destroy_process_group()


def example(directory):
    """The configuration of README.md, as a module, and the words of its command that torchtitan parses."""
    with open(os.path.join(SOURCE, "tools", "python", "README.md"), encoding="utf-8") as f:
        text = f.read().split("## Put it under torchtitan")[1]
    with open(os.path.join(directory, "my_configs.py"), "w", encoding="utf-8") as f:
        f.write(text.split("```python\n")[1].split("```")[0])
    command = text.split("```sh\n")[1].split("```")[0]
    with open(os.path.join(directory, "words"), "w", encoding="utf-8") as f:
        f.write(command.split("-m torchtitan.train")[1].strip())
    return command


def make_inputs(directory):
    """What a checkout of torchtitan has for its model for debugging: a tokenizer and texts."""
    assets = os.path.join(directory, "tests", "assets")
    os.makedirs(f"{assets}/c4_test")
    os.makedirs(f"{assets}/tokenizer")
    with open(f"{assets}/c4_test/data.json", "w", encoding="ascii") as f:
        f.writelines(json.dumps({"text": " ".join(f"{n} and {n * m}." for m in range(40))}) + "\n" for n in range(200))
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(symbols[-2:])
    tokenizer.save(f"{assets}/tokenizer/tokenizer.json")
    for name, text in (("tests/assets/tokenizer/tokenizer_config.json", json.dumps({"bos_token": "<s>", "eos_token": "</s>"})),
                       ("sitecustomize.py", SITE), ("small_configs.py", SMALL % TRAINED)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            f.write(text)


def kill_tree(pid):
    """A process and its descendants: torchrun's workers are in sessions of their own."""
    children = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with open(path, encoding="ascii") as f:
            children += f.read().split()
    os.kill(int(pid), signal.SIGKILL)
    for child in children:
        kill_tree(child)


def run_trainer(directory, command, kill_at):
    """Returns the losses by step, and the log. At step `kill_at` all ranks are killed."""
    path = [os.path.dirname(sys.executable), os.environ["PATH"]]
    environment = {**os.environ, "PATH": ":".join(path), "OMP_NUM_THREADS": "1"}
    command = command.replace("PYTHONPATH=.", f"PYTHONPATH=.:{SOURCE}/tools/python")
    job = subprocess.Popen(["bash", "-c", command], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    losses, log = {}, []
    for line in job.stdout:
        log.append(line)
        if found := re.search(r"step:\s+(\d+)\D.*?loss:\s+([\d.]+)", line):
            losses[int(found[1])] = float(found[2])
            if int(found[1]) == kill_at:
                kill_tree(job.pid)
    assert (job.wait() == 0) == (kill_at is None), "".join(log)
    return losses, "".join(log)


def check_trainer(directory, command):
    """torchtitan's own trainer, by the command of README.md but for the number of ranks and the size of the model's batch."""
    make_inputs(directory)
    command = command.replace("--nproc-per-node=8", "--nproc-per-node=2").replace("my_configs", "small_configs").replace("=debug", "=small")
    folder = os.path.join(directory, "outputs", "checkpoint")
    before, _ = run_trainer(directory, command, KILLED)
    newest = perdure.list_checkpoints(folder)[0]
    assert newest.step in (3, 6), newest  # and the loss of the second step after it depends on the moments
    after, log = run_trainer(directory, command, None)
    assert f"Loading the checkpoint from {newest.path}" in log.replace("./", directory + "/"), (newest, log)
    assert min(after) == newest.step + 1 and max(after) == TRAINED, after
    assert all(abs(before[step] - after[step]) < 1e-4 for step in range(newest.step + 1, KILLED + 1)), (before, after)
    assert perdure.list_checkpoints(folder)[0].step == TRAINED
    with perdure.open(folder) as checkpoint:
        checkpoint.verify()
        assert "tok_embeddings.weight" in checkpoint, list(checkpoint)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as workspace:
        warnings.simplefilter("ignore")
        command = example(workspace)
        check_trainer(workspace, command)
        mp.spawn(save, (4, workspace), 4)
        mp.spawn(load, (3, workspace), 3)
    print("ok")
