#!/usr/bin/env python3
"""torchtitan's CheckpointManager through perdure.titan: an FSDP2 model saved by 4 gloo ranks goes on, on 3 ranks, as if nothing had happened.

usage: python_titan.py SOURCE

Without a GPU torchtitan itself does not train, so its checkpoint manager, optimizers and schedulers are driven alone, with the configuration of
README.md. PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and torchtitan. Exit 77: there is none.
"""
import os
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
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch and torchtitan", file=sys.stderr)
    sys.exit(77)

SOURCE = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402
import perdure.titan  # noqa: E402

STEPS, CUT, KEPT = 9, 6, 2


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as workspace:
        warnings.simplefilter("ignore")
        example(workspace)
        mp.spawn(save, (4, workspace), 4)
        mp.spawn(load, (3, workspace), 3)
    print("ok")
