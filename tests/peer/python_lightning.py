#!/usr/bin/env python3
"""A Lightning run through perdure.lightning: resumed in the middle it ends with the weights of one whose checkpoints are Lightning's own.

usage: python_lightning.py SOURCE PERDURE

PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and pytorch-lightning. Exit 77: there is none.
"""
import collections
import os
import subprocess
import sys
import tempfile
import warnings

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import pytorch_lightning as pl
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch and pytorch-lightning", file=sys.stderr)
    sys.exit(77)

SOURCE, PERDURE = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
import perdure  # noqa: E402
import perdure.lightning  # noqa: E402


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("turning", torch.ones(2, dtype=torch.complex64))

    def training_step(self, batch, number):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def fit(directory, steps, plugins, resume=None):
    torch.manual_seed(1)
    model = Model()
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))
    saves = pl.callbacks.ModelCheckpoint(dirpath=directory, every_n_train_steps=2, save_top_k=1, save_last=True)
    trainer = pl.Trainer(max_steps=steps, accelerator="cpu", devices=1, plugins=plugins, callbacks=[saves], logger=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=4), ckpt_path=resume)
    return model.state_dict()


def main(directory):
    ends = {}
    for name, plugins in (("own", []), ("perdure", [perdure.lightning.CheckpointIO(compression="zstd:1")])):
        place = os.path.join(directory, name)
        fit(place, 4, plugins)
        ends[name] = fit(place, 7, plugins, os.path.join(place, "last.ckpt"))
    for name, tensor in ends["own"].items():
        assert torch.equal(tensor, ends["perdure"][name]), name
    place = os.path.join(directory, "perdure")
    kept = sorted(os.listdir(place))
    assert len(kept) == 2 and kept[1] == "last.ckpt", f"older checkpoints were removed: {kept}"
    with perdure.open(os.path.join(place, "last.ckpt")) as saved:
        assert saved.step == 6 and saved["layer.weight"].shape == (4, 8) and saved["optimizer_states.0.state.0.exp_avg"].shape == (4, 8), list(saved)
        saved.verify()
    loaded = perdure.lightning.CheckpointIO().load_checkpoint(os.path.join(place, "last.ckpt"), map_location="meta")
    assert loaded["state_dict"]["layer.weight"].device.type == "meta" and loaded["state_dict"]["empty"].shape == (0, 3)
    states = {"state_dict": Model().state_dict(), "callbacks": collections.defaultdict(list, {"a": torch.ones(3)}), "counts": collections.Counter("aab")}
    perdure.lightning.CheckpointIO().save_checkpoint(states, os.path.join(directory, "types.ckpt"))
    found = perdure.lightning.CheckpointIO().load_checkpoint(os.path.join(directory, "types.ckpt"))
    assert found["counts"] == states["counts"] and found["callbacks"]["a"].sum() == 3 and found["callbacks"]["new"] == []
    assert found["state_dict"]._metadata == states["state_dict"]._metadata
    subprocess.run([PERDURE, "ckpt", "verify", os.path.join(place, "last.ckpt")], check=True, capture_output=True)


warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory(prefix="perdure-lightning-") as workspace:
    main(workspace)
print("ok")
