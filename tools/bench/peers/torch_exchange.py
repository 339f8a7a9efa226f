"""Steps of ranks on hosts that links of 1 Gbit/s join: DistributedDataParallel and FSDP2 over gloo. As root: hosts are network namespaces."""
import functools
import json
import os
import subprocess
import sys
import time

import peer

HOSTS, RANKS, RATE, TOKENS, STEPS = 4, 8, "1gbit", 16, 3
MODEL = {"n_embd": 512, "n_head": 8, "n_layer": 4, "vocab_size": 4096, "n_positions": 64}  # as of bench exchange
STAGES = {"DDP": 1, "FSDP2": 3}
CASES = {f"{kind}, {count} micro-batch{'es' * (count > 1)}, terms of {bits} bits": (kind, count, bits)
         for kind in STAGES for count in (1, 4) for bits in (64, 32)}
MEASURED = ("step", "GB that leave a host")
UNFAIR = {f"{case}, {what}": {
    "DDP": "beside ZeRO-1, both bf16 with fp32 masters; DDP's gradients travel as fp32, perdure's as integers, whose sums are exact; "
           "DDP holds all moments and gathers nothing",
    "FSDP2": "beside ZeRO-3, both bf16 with fp32 masters; FSDP2 reduces in fp32, perdure in integers"}[kind]
    for case, (kind, _, _) in CASES.items() for what in MEASURED}


def here():
    return os.path.abspath(__file__)


def on_hosts(*command):
    """What it printed last, from JSON."""
    script = os.path.join(os.path.dirname(os.path.dirname(here())), "hosts.sh")
    done = subprocess.run([script, "--shape", RATE, str(HOSTS), *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
    return done.stdout


# ---- theirs ----


def sent_bytes():
    with open("/sys/class/net/eth0/statistics/tx_bytes", encoding="ascii") as f:
        return int(f.read())


def start():
    """On the machine itself, in hosts.sh: neighbours by number share a host, so that rings cross each link once."""
    environment = {"MASTER_ADDR": os.environ["PERDURE_BENCH_ADDRESS"], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                   "OMPI_MCA_rmaps_base_mapping_policy": f"ppr:{RANKS // HOSTS}:node", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    mpirun = [word for word in os.environ["PERDURE_MPIRUN"].split() if word not in ("--map-by", "node")]
    passed = [word for name in environment if not name.startswith("OMPI") for word in ("-x", name)]
    os.execvpe(mpirun[0], [*mpirun, *passed, "-n", str(RANKS), sys.executable, "-B", here(), "--of-mpirun", *sys.argv[2:]],
               {**os.environ, **environment})


def shared_model(torch, kind):
    """Of all ranks, and what keeps micro-batches but the last from being exchanged."""
    import transformers
    torch.manual_seed(1)
    config = transformers.GPT2Config(**MODEL, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, lambda is_last: setattr(model, "require_backward_grad_sync", is_last)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, model.set_requires_gradient_sync


def make_step(torch, kind, micro_batches):
    model, exchanges = shared_model(torch, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, MODEL["vocab_size"], (1, TOKENS + 1))

    def step():
        for i in range(micro_batches):
            exchanges(i + 1 == micro_batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "DDP"):
                logits = model(input_ids=ids[:, :-1], use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits[0].float(), ids[0, 1:]) / micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_mpirun(kind, micro_batches):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    here_first = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == "0"
    dist.init_process_group("gloo", rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=RANKS)
    step = make_step(torch, kind, micro_batches)
    seconds, sent = [], 0
    for i in range(STEPS + 1):  # in the first one links are made
        dist.barrier()
        before, began = sent_bytes(), time.perf_counter()
        step()
        dist.barrier()
        seconds += [time.perf_counter() - began] if i else []
        sent += (sent_bytes() - before) * here_first if i else 0
    sent = torch.tensor(sent)
    dist.all_reduce(sent)
    dist.destroy_process_group()
    return {"seconds": sorted(seconds)[STEPS // 2], "bytes": sent.item() / STEPS / HOSTS}


# ---- both ----


def rows_of(measured):
    return {f"{case}, {what}": value for case, key in CASES.items() for what, value in zip(MEASURED, measured(*key))}


def prepare(room):
    def theirs():
        @functools.cache
        def run(kind, count):
            said = json.loads(on_hosts(sys.executable, "-B", here(), "--start", kind, count).strip().splitlines()[-1])
            return said["seconds"], said["bytes"] * 1e-9
        return rows_of(lambda kind, count, _: run(kind, count))

    def ours():
        def measured(kind, count, bits):
            said = json.loads(on_hosts(room.perdure, "bench", "exchange", f"--hosts={HOSTS}", f"--ranks={RANKS}", f"--runs={STEPS}", f"--zero={STAGES[kind]}",
                                       f"--micro-batches={count}", f"--tokens={TOKENS}", "--json", f"numerics.terms={bits}"))
            name = f"zero{STAGES[kind]}_micro_batches{count}"
            return said[f"{name}_seconds"], said[f"{name}_host_wire_bytes"] * 1e-9
        return rows_of(measured)

    return theirs, ours


if sys.argv[1:2] == ["--start"]:
    start()
elif sys.argv[1:2] == ["--of-mpirun"]:
    found = of_mpirun(sys.argv[2], int(sys.argv[3]))
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        print(json.dumps(found))
else:
    peer.main("torch", prepare, UNFAIR)
