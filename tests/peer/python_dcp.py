#!/usr/bin/env python3
"""torch.distributed.checkpoint through perdure.torch: saved by 4 gloo ranks, loaded by 3, bit for bit.

usage: python_dcp.py SOURCE PERDURE

PERDURE_LIBRARY is libperdure.so. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and NumPy. Exit 77: there is none.
"""
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import numpy  # noqa: F401
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch", file=sys.stderr)
    sys.exit(77)

SOURCE, PERDURE = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
sys.path.insert(0, os.path.join(SOURCE, "tests", "objects"))
import perdure  # noqa: E402
import perdure.torch  # noqa: E402
from server import Server  # noqa: E402

# name, shape, type, places on a mesh of two dimensions; five dimensions are more than a shard's rows have, three rows more than there are ranks
TENSORS = [("emb.weight", (37, 8), torch.float32, (Shard(0), Shard(0))), ("wq.weight", (12, 10), torch.bfloat16, (Shard(0), Shard(1))),
           ("norm.weight", (3,), torch.float32, (Shard(0), Replicate())), ("conv.weight", (4, 3, 2, 2, 2), torch.float32, (Shard(0), Shard(1))),
           ("frozen.weight", (5, 4), torch.float16, (Replicate(), Replicate()))]


class Opaque:
    """An object of the program's own."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value


def draw(seed, shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_state(mesh, blank=False):
    def tensor(number, shape, dtype, places):
        value = draw(number, shape, dtype)
        return distribute_tensor(torch.zeros_like(value) if blank else value, mesh, places)

    model = {name: tensor(i, shape, dtype, places) for i, (name, shape, dtype, places) in enumerate(TENSORS)}
    moments = {name: {"step": torch.tensor(0.0 if blank else 7.0), "exp_avg": tensor(100 + i, shape, torch.float32, places),
                      "exp_avg_sq": tensor(200 + i, shape, torch.float32, places)}
               for i, (name, shape, dtype, places) in enumerate(TENSORS[:4])}  # the last one is frozen
    loader = Opaque(None if blank else [1, 2, 3])
    plain, scale = draw(9, (5, 5), torch.float64), draw(11, (5,), torch.float8_e4m3fn)
    return {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 0.0 if blank else 0.25, "betas": (0.9, 0.95)}]}, "loader": loader,
            "list": [torch.full((2,), 0.0 if blank else 1.0), 5], "plain": torch.zeros_like(plain) if blank else plain,
            "scale": torch.zeros_like(scale) if blank else scale, "empty": torch.zeros(0, 3),
            "a name": torch.tensor(not blank), "transposed": (torch.zeros(4, 6) if blank else draw(10, (4, 6), torch.float32)).t()}


def assert_equal(a, b, name=""):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), name
        for key in a:
            assert_equal(a[key], b[key], f"{name}.{key}")
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y, name)
    elif isinstance(a, torch.Tensor):
        a, b = (t.to_local() if hasattr(t, "to_local") else t for t in (a, b))
        assert torch.equal(a.contiguous().view(torch.uint8) if a.ndim else a, b.contiguous().view(torch.uint8) if b.ndim else b), name
    else:
        assert a == b, (name, a, b)


def make_model(mesh):
    """FSDP2 with AdamW after two steps."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(13, 17), torch.nn.Tanh(), torch.nn.Linear(17, 5))
    for layer in (*model, model):
        if layer is model or list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 2)
    return model, optimizer


def train(model, optimizer, steps):
    for step in range(steps):
        loss = model(draw(1000 + step, (24, 13), torch.float32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def full(state):
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def begin(rank, size, directory, name):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{directory}/{name}")


def save(rank, size, directory):
    begin(rank, size, directory, "save")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state, path = make_state(mesh), os.path.join(directory, "saved")
    with_planner, group = perdure.torch.Planner(), dist.new_group(backend="gloo")
    writer = perdure.torch.Writer(path, process_group=group)
    dcp.save(state, storage_writer=writer, planner=with_planner, process_group=group)
    assert [entry.step for entry in perdure.list_checkpoints(path)] == [0]
    dist.barrier()
    dcp.save(state, storage_writer=writer, checkpoint_id=os.path.join(path, "step-20"), process_group=group)
    dcp.async_save(state, storage_writer=writer, planner=with_planner, process_group=group).result()
    for _ in range(2):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state, storage_writer=writer, planner=planner, process_group=group)
    for place, error in ((path, "BusyError"), (os.path.join(os.devnull, "below", "saved"), "InvalidError")):  # in use; rank 0 cannot make it
        try:
            dcp.save({"x": torch.ones(1)}, storage_writer=perdure.torch.Writer(place))
        except dcp.CheckpointException as e:
            assert len(e.failures) == size and error in str(e), e
        else:
            raise AssertionError(place)
    writer.close()
    model, optimizer = make_model(init_device_mesh("cpu", (size,)))
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments}, storage_writer=perdure.torch.Writer(os.path.join(directory, "fsdp"), bucket="s3://bucket/fsdp"))
    whole = full(parameters)
    train(model, optimizer, 2)
    trained = full(model.state_dict())
    if rank == 0:
        torch.save((whole, trained), os.path.join(directory, "whole.pt"))
    dist.destroy_process_group()


def load(rank, size, directory):
    begin(rank, size, directory, "load")
    mesh, path = init_device_mesh("cpu", (3, 1), mesh_dim_names=("dp", "tp")), os.path.join(directory, "saved")
    want = make_state(mesh)
    for reader, place in ((perdure.torch.Reader(path), None), (perdure.torch.Reader(), os.path.join(path, "step-20")), (perdure.torch.Reader(path, step=0), None)):
        state = make_state(mesh, blank=True)
        dcp.load(state, storage_reader=reader, checkpoint_id=place)
        assert_equal(state, want)
    model, optimizer = make_model(init_device_mesh("cpu", (size,)))
    train(model, optimizer, 3)  # elsewhere, before it comes back
    parameters, moments = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": moments}, storage_reader=perdure.torch.Reader("s3://bucket/fsdp"))
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
    whole, trained = torch.load(os.path.join(directory, "whole.pt"), weights_only=True)
    assert_equal(full(model.state_dict()), whole)
    train(model, optimizer, 2)
    for name, value in full(model.state_dict()).items():
        assert torch.allclose(value, trained[name], atol=1e-6), name
    dist.destroy_process_group()


class Stage(torch.nn.ModuleDict):
    """Layers of a pipeline by their numbers in the whole."""

    def __init__(self, first, end):
        torch.manual_seed(3)
        super().__init__({str(i): layer for i, layer in enumerate([torch.nn.Linear(6, 6) for _ in range(4)]) if first <= i < end})

    def forward(self, x):
        for layer in self.values():
            x = torch.tanh(layer(x))
        return x


def pipeline_batch(step):
    return draw(3000 + step, (8, 6), torch.float32), draw(4000 + step, (8, 6), torch.float32)


def pipeline(rank, _, directory, cut, loads):
    """Two stages of torch's own schedule: steps 0 and 1, a save, steps 2 and 3; or steps 2 and 3 of what was saved under another cut."""
    begin(rank, 2, directory, f"pipeline-{cut}")
    stage, path = Stage(*((0, cut), (cut, 4))[rank]), os.path.join(directory, "pipeline")
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
    schedule = ScheduleGPipe(PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=torch.nn.functional.mse_loss)
    options, found = StateDictOptions(flatten_optimizer_state_dict=True), []
    for step in range(2 if loads else 0, 4):
        if step == 2:
            model, moments = get_state_dict(stage, optimizer, options=options)
            state = {"model": model, "optimizer": moments}
            if loads:
                dcp.load(state, storage_reader=perdure.torch.Reader(path))
                set_state_dict(stage, optimizer, model_state_dict=model, optim_state_dict=moments, options=options)
            else:
                dcp.save(state, storage_writer=perdure.torch.Writer(path), planner=perdure.torch.Planner())
        optimizer.zero_grad()
        (x, y), losses = pipeline_batch(step), []
        schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
        optimizer.step()
        found += [float(sum(losses)) / 2] if step >= 2 else []
    if rank == 1:
        with open(f"{path}-{cut}.json", "w", encoding="ascii") as f:
            json.dump(found, f)
    dist.destroy_process_group()


def check_pipeline(directory):
    """Each stage saves its own part. One process loads the whole; two go on under another cut."""
    mp.spawn(pipeline, (2, directory, 2, False), 2)
    mp.spawn(pipeline, (2, directory, 1, True), 2)
    with open(f"{directory}/pipeline-2.json", encoding="ascii") as a, open(f"{directory}/pipeline-1.json", encoding="ascii") as b:
        undisturbed, resumed = json.load(a), json.load(b)
    assert len(resumed) == 2 and all(abs(x - y) < 1e-6 for x, y in zip(undisturbed, resumed)), (undisturbed, resumed)
    whole = Stage(0, 4)
    state = {"model": {name: torch.zeros_like(value) for name, value in whole.state_dict().items()}}
    dcp.load(state, storage_reader=perdure.torch.Reader(os.path.join(directory, "pipeline")))
    whole.load_state_dict(state["model"])
    x, y = pipeline_batch(2)
    assert abs(float(torch.nn.functional.mse_loss(whole(x), y)) - undisturbed[0]) < 1e-6, undisturbed


def check_alone(directory):
    """One process, without a process group."""
    path, state = os.path.join(directory, "new", "alone"), {"w": draw(1, (6, 7), torch.float32), "n": 3}
    writer = pickle.loads(pickle.dumps(perdure.torch.Writer(path, keep_last=1)))
    for step in (5, None):
        writer.step = step
        dcp.save(state, storage_writer=writer)
    assert [entry.step for entry in perdure.list_checkpoints(path)] == [6]
    back = {"w": torch.zeros(6, 7), "n": 0}
    dcp.load(back, storage_reader=perdure.torch.Reader(path))
    assert_equal(back, state)
    theirs = {"model": {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in
                        (("tok_embeddings.weight", (37, 8), torch.float32), ("layers.0.half.weight", (6, 5), torch.bfloat16))}}
    again = {"model": {name: torch.zeros_like(t) for name, t in theirs["model"].items()}}
    golden = os.path.join(SOURCE, "tests", "golden", "formats", "dcp")
    dcp.load(theirs, checkpoint_id=golden)
    dcp.load(again["model"], storage_reader=perdure.torch.Reader(golden))
    assert_equal(again, theirs)
    try:
        dcp.load({"w": torch.zeros(6, 8)}, storage_reader=perdure.torch.Reader(path))
    except dcp.CheckpointException as e:
        assert "ize mismatch" in str(e), e
    else:
        raise AssertionError("a tensor of another shape was loaded")


def check_kinds(directory):
    """A conjugation or a sign that torch puts off is saved and loaded as the values that it stands for. What has no dense data is refused."""
    path, value = os.path.join(directory, "kinds"), torch.tensor([1 + 2j, 3 - 4j])
    state = {"conjugate": value.conj(), "negative": value.conj().imag, "plain": value}
    assert state["conjugate"].is_conj() and state["negative"].is_neg()
    dcp.save(state, storage_writer=perdure.torch.Writer(path))
    saved = perdure.load(path, framework="torch")
    assert saved.keys() == state.keys() and all(torch.equal(saved[name], state[name]) for name in state), saved
    back = {name: torch.zeros_like(value).conj() for name in ("conjugate", "plain")}
    dcp.load(back, storage_reader=perdure.torch.Reader(path))
    assert all(torch.equal(back[name], state[name]) for name in back), back
    for tensor, words in ((torch.eye(3).to_sparse(), "torch.sparse_coo"), (torch.zeros(3, device="meta"), "meta device"),
                          (torch.zeros(3, dtype=torch.complex32), "torch.complex32")):
        refused = [lambda: perdure.save(path, {"odd": tensor}, 9)]
        if not tensor.is_sparse:
            refused.append(lambda: dcp.save({"odd": tensor}, storage_writer=perdure.torch.Writer(path)))
        for save in refused:
            try:
                save()
            except (perdure.InvalidError, dcp.CheckpointException) as e:
                assert "tensor odd" in str(e) and words in str(e), e
            else:
                raise AssertionError(f"{words} was saved")
    try:
        dcp.save({"w": value}, storage_writer=perdure.torch.Writer("s3://mine/saved"))
    except dcp.CheckpointException as e:
        assert "bucket='s3://mine/saved'" in str(e), e
    assert [entry.step for entry in perdure.list_checkpoints(path)] == [0]


def check_earlier(directory):
    """As version 0.1.0 kept tensors of more than 4 dimensions and without elements: in the metadata."""
    path, value = os.path.join(directory, "earlier"), draw(1, (4, 3, 2, 2, 3), torch.float32)
    perdure.save(path, {"deep": value.reshape(4, 3, 2, 6)}, metadata=json.dumps(
        {"writer": "perdure.torch", "names": {}, "paths": {}, "shapes": {"deep": [4, 3, 2, 2, 3]}, "empty": {"empty": ["float32", [0, 3]]}}))
    back = {"deep": torch.zeros_like(value), "empty": torch.ones(0, 3)}
    dcp.load(back, storage_reader=perdure.torch.Reader(path))
    assert_equal(back, {"deep": value, "empty": torch.zeros(0, 3)})


class Gated(perdure.torch.Writer):
    """A writer whose saves wait for the gate."""

    gate = threading.Event()
    places: list[int] = []  # of the large tensor's copies

    def stage(self, state_dict):
        staged = super().stage(state_dict)
        self.places.append(staged["large"].data_ptr())
        return staged

    def write_data(self, plan, planner):
        self.gate.wait()
        return super().write_data(plan, planner)


def check_copies(directory):
    """Each asynchronous save has the values of its call. It uses the memory of the one before, but only after that has ended."""
    path, state = os.path.join(directory, "copies"), {"w": torch.zeros(64, 64), "inner": {"w": torch.zeros(3)}, "large": torch.zeros(513, 1024)}
    writer, futures, stagers = Gated(path), [], []
    for step in range(5):
        if step == 4:
            state["w"].resize_(65, 64)
        state["w"].fill_(step)
        state["large"].fill_(step)
        futures.append(dcp.async_save(state, storage_writer=writer))
        stagers.append(writer._stager)
        state["w"].fill_(-1)
        state["large"].fill_(-1)
        if step > 0:  # the first two wait together
            writer.gate.set()
            for future in futures:
                future.result()
    assert stagers[0] is not stagers[1] is stagers[2] is stagers[3], stagers
    assert all(place % 4096 == 0 for place in writer.places), writer.places  # direct I/O takes it as it lies
    for name in ("w", "large"):
        saved = [perdure.load(path, step=step)[name] for step in range(5)]
        assert all((w == w[0, 0]).all() for w in saved) and sorted(w[0, 0] for w in saved) == [0, 1, 2, 3, 4], saved


def check_bucket(directory, server):
    """Copies in a bucket, and a bucket that is gone."""
    path, far, state = os.path.join(directory, "copied"), "s3://bucket/copied", {"w": draw(1, (6, 7), torch.float32)}
    writer = perdure.torch.Writer(path, bucket=far, bucket_keep_last=2)
    for _ in range(3):
        dcp.save(state, storage_writer=writer)
    assert [entry.step for entry in perdure.list_checkpoints(far)] == [2, 1] and len(perdure.list_checkpoints(path)) == 3
    assert_equal(perdure.load(far, framework="torch"), state)
    perdure.upload(path, far, step=0)
    assert [entry.step for entry in perdure.list_checkpoints(far)] == [2, 1, 0]
    for wrong, error in (((path, "there"), perdure.InvalidError), ((os.path.join(directory, "alone"), far), perdure.NotFoundError),
                         ((os.path.join(directory, "saved"), far), perdure.InvalidError)):
        try:
            perdure.upload(*wrong)
        except error:
            continue
        raise AssertionError(wrong)
    anew = perdure.torch.Writer(os.path.join(directory, "anew"), bucket=far)  # of a machine that has another disk
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dcp.save(state, storage_writer=anew)
        anew.step = 2
        dcp.save(state, storage_writer=anew)
    assert [str(w.message) for w in said if "step" in str(w.message)] == [f"{anew.directory} has no checkpoints: saves go on after step 2 of {far}"], said
    assert [entry.step for entry in perdure.list_checkpoints(far)] == [2, 3, 2, 1, 0]  # the newest first: step 2 was saved again
    anew.close()
    server.store.objects.clear()
    server.__exit__()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dcp.save(state, storage_writer=writer)
    assert any("step 3 is saved in" in str(w.message) for w in said), said
    assert perdure.list_checkpoints(path)[0].step == 3
    try:
        dcp.save(state, storage_writer=perdure.torch.Writer(os.path.join(directory, "beyond"), bucket=far))
    except dcp.CheckpointException as e:
        assert isinstance(e.failures[0][0], perdure.StorageError) and far in str(e), e
    else:
        raise AssertionError("a new directory whose history nobody could read")


def check_kept(directory):
    """What is saved is a checkpoint like any other, also in a directory whose name ends like a step's."""
    named = os.path.join(directory, "run-step-5")
    dcp.save({"x": torch.ones(1)}, storage_writer=perdure.torch.Writer(), checkpoint_id=named)
    assert [entry.step for entry in perdure.list_checkpoints(named)] == [0]
    path = os.path.join(directory, "saved")
    with perdure.open(path) as c:
        c.verify()
        assert c.step == 23 and c["emb.weight"].has_moments and not c["frozen.weight"].has_moments and c["loader"].is_bytes, c
        assert torch.equal(c["emb.weight"].torch(), draw(0, (37, 8), torch.float32))
        assert torch.equal(c["exp_avg/emb.weight"].torch(), draw(100, (37, 8), torch.float32))
        assert c["conv.weight"].shape == (4, 3, 2, 2, 2) and c["empty"].shape == (0, 3)
    for words in (["ls", path], ["show", path], ["verify", path], ["diff", os.path.join(path, "step-000000000000-1"), os.path.join(path, "step-000000000023-1")]):
        out = subprocess.run([PERDURE, "ckpt", *words], capture_output=True, text=True)
        assert out.returncode == 0, (words, out.stdout, out.stderr)
    assert "0 of" in out.stdout, out.stdout


def check_readme(directory):
    """The example with torch of README.md, word for word."""
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        block = f.read().split("```python\n")[2].split("```")[0]
    here = os.getcwd()
    os.chdir(directory)
    exec(compile(block, "README.md", "exec"), {})
    os.chdir(here)


def check_taken(directory):
    """A model with its moments, saved under any dictionary, goes to transformers and into a run of perdure."""
    llama, path, out = (os.path.join(SOURCE, "tests", "golden", "formats", "transformers", "llama"), *(os.path.join(directory, n) for n in ("llama", "out")))
    model = perdure.load(llama, framework="torch")
    moments = {name: {"step": torch.tensor(3.0), "exp_avg": t + 1, "exp_avg_sq": t.square()} for name, t in model.items()}
    dcp.save({"model": model, "optimizer": {"state": moments}}, storage_writer=perdure.torch.Writer(path))
    for words in (["export", path, out, "--format=safetensors"], ["import", path, out + "-run"]):
        done = subprocess.run([PERDURE, "ckpt", *words, f"--config={llama}/config.json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert_equal(perdure.load(out, framework="torch"), model)
    with perdure.open(out + "-run") as run:
        for name, tensor in model.items():
            assert_equal({kind: run.kind(kind)[name].torch() for kind in ("param", "exp_avg", "exp_avg_sq")},
                         {"param": tensor, "exp_avg": tensor + 1, "exp_avg_sq": tensor.square()}, name)
    shutil.copy(f"{llama}/config.json", path)  # says of which model they are, as it does beside weights of transformers
    drawn = [subprocess.run([PERDURE, "sample", place, "--tokens=1,2,3", "--count=4", "--temperature=0", "--json"], capture_output=True, text=True)
             for place in (path, llama)]
    assert [d.returncode for d in drawn] == [0, 0] and json.loads(drawn[0].stdout)["tokens"] == json.loads(drawn[1].stdout)["tokens"], drawn
    with open(f"{directory}/signs.txt", "w", encoding="ascii") as f:
        f.write("!#$%&' " * 100)  # bytes below 40, its vocabulary
    with open(f"{out}.yaml", "w", encoding="utf-8") as f:
        f.write(f"data: {{train: ['{directory}/signs.txt']}}\nbatch: {{sequences: 2, micro_batch: 1, context: 16}}\nrun: {{steps: 4}}\n")
    tuned = subprocess.run([PERDURE, "train", f"{out}.yaml", f"init.from={path}", f"run.dir={out}-tuned"], capture_output=True, text=True)
    assert tuned.returncode == 0 and "resumed at step 0" in tuned.stderr, tuned.stderr


if __name__ == "__main__":
    server = Server().__enter__()
    os.environ.update(server.environment())
    with tempfile.TemporaryDirectory(prefix="perdure-python-") as workspace:
        warnings.simplefilter("ignore")
        mp.spawn(save, (4, workspace), 4)
        mp.spawn(load, (3, workspace), 3)
        check_pipeline(workspace)
        check_alone(workspace)
        check_kinds(workspace)
        check_earlier(workspace)
        check_copies(workspace)
        check_kept(workspace)
        check_readme(workspace)
        check_taken(workspace)
        check_bucket(workspace, server)
    print("ok")
