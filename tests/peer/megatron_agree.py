#!/usr/bin/env python3
"""Checkpoints of Megatron-Core, written and read by itself: equal bit for bit in both directions.

usage: megatron_agree.py PERDURE

Two ranks of Megatron save one model fully_reshardable and dp_reshardable; both come in, as the same state. So do eight, which share
one over tensor ranks and pipeline stages. What goes out again is
loaded by two ranks of Megatron as its training does it (common.pt, content metadata, a strict load of the model and of its
distributed optimizer), and is what they have from their own. Models of ours of other families load into Megatron's as strictly. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU) and
megatron-core. Exit 77: there is none.
"""
import os
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import megatron.core  # noqa: F401
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch and megatron-core", file=sys.stderr)
    sys.exit(77)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/formats"))
import make_megatron  # noqa: E402


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def start_ranks(what, *paths, count=2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [subprocess.Popen([sys.executable, __file__, f"rank:{what}", str(rank), *paths], env={**os.environ, "MASTER_PORT": port},
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for rank in range(count)]
    for rank in ranks:
        errors = rank.communicate(timeout=600)[1]
        assert rank.returncode == 0, errors[-4000:]


def mend_loader():
    """Megatron 0.16 without Transformer Engine looks for a step among the tensors of a parameter, where it saves none: keep that of
    the groups, which its load_state_dict has just set."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    original = DistributedOptimizer._set_main_param_and_optimizer_states

    def mended(self, parameter, tensors):
        original(self, parameter, {"step": self._get_main_param_and_optimizer_states(parameter)["step"], **tensors})

    DistributedOptimizer._set_main_param_and_optimizer_states = mended


def load(directory):
    """A model and its optimizer from what latest_checkpointed_iteration.txt names, as megatron/training/checkpointing.py goes about it."""
    from megatron.core import dist_checkpointing
    with open(f"{directory}/latest_checkpointed_iteration.txt", encoding="utf-8") as f:
        path = f"{directory}/iter_{int(f.read()):07d}"
    model, optimizer = make_megatron.make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)  # all of it has to come from the checkpoint
    optimizer.reload_model_params()
    optimizer.step()  # without Transformer Engine its optimizer loads only into a state that is there
    common = dist_checkpointing.load_common_state_dict(path)
    content = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    state = {"model": model.module.sharded_state_dict(prefix="", metadata=content)}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=True, metadata=content)
    state = dist_checkpointing.load(state, path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert state["iteration"] == 2 and state["checkpoint_version"] == 3.0
    for name, value in vars(make_megatron.arguments()).items():
        assert getattr(state["args"], name) == value, (name, value, state["args"])
    return model, optimizer


def parts(model, optimizer):
    """What this rank has: its shards of the fp32 parameters and of the moments, and the model."""
    yield from ((f"model {name}", value) for name, value in model.module.named_parameters())
    for distributed in optimizer.chained_optimizers if hasattr(optimizer, "chained_optimizers") else [optimizer]:
        for g, group in enumerate(distributed.optimizer.param_groups):
            assert all(distributed.optimizer.state[p]["step"] == 2 for p in group["params"])
            for p, parameter in enumerate(group["params"]):
                yield f"fp32 {g} {p}", parameter
                for kind in ("exp_avg", "exp_avg_sq"):
                    yield f"{kind} {g} {p}", distributed.optimizer.state[parameter][kind]


def compare_rank(theirs, ours):
    mend_loader()
    expected, found = [dict(parts(*load(directory))) for directory in (theirs, ours)]
    assert expected.keys() == found.keys() and len(expected) > 30
    for name, value in expected.items():
        assert value.abs().sum() > 0 and torch.equal(value, found[name]), name


FAMILIES = {  # ours, and Megatron's
    "gpt2": (["model.family=gpt2", "model.ffn=256"], dict(ffn_hidden_size=256, normalization="LayerNorm"), dict(position_embedding_type="learned_absolute")),
    "qwen2": (["model.qkv_bias=true"], dict(add_qkv_bias=True), dict(share_embeddings_and_output_weights=False)),
    "qwen3": (["model.family=qwen3", "model.head_size=24"], dict(kv_channels=24, qk_layernorm=True), dict(share_embeddings_and_output_weights=False)),
}


def load_families_rank(directory):
    from megatron.core import dist_checkpointing
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    llama = dict(ffn_hidden_size=96, normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
                 add_bias_linear=False, num_query_groups=2)
    for family, (_, config, arguments) in FAMILIES.items():
        config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True,
                                   masked_softmax_fusion=False, bias_dropout_fusion=False, gradient_accumulation_fusion=False,
                                   apply_rope_fusion=False, **({} if family == "gpt2" else llama), **config)
        spec = get_gpt_layer_local_spec(normalization=config.normalization, qk_layernorm=config.qk_layernorm)
        model = GPTModel(config, spec, vocab_size=256, max_sequence_length=32,
                         **{"position_embedding_type": "rope", "share_embeddings_and_output_weights": True, **arguments})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7)
        state = {"model": model.sharded_state_dict(prefix="", metadata=make_megatron.metadata("fully_reshardable"))}
        model.load_state_dict(dist_checkpointing.load(state, f"{directory}/{family}-out/iter_0000001")["model"])
        assert not any((parameter == 7).any() for parameter in model.parameters()), family


def check_families(perdure, directory):
    """Out of a step of ours, into Megatron, and in again by its arguments alone."""
    with open(f"{directory}/text", "wb") as f:
        f.write(b"In the beginning was the word. " * 200)
    for family, (overrides, *_) in FAMILIES.items():
        with open(f"{directory}/run.yaml", "w", encoding="utf-8") as f:
            f.write(f"run: {{dir: {directory}/{family}, steps: 1}}\ndata: {{train: {directory}/text}}\nbatch: {{context: 32, sequences: 2}}\n"
                    "model: {preset: byte-1m, layers: 2, hidden: 64, heads: 4, ffn: 96, context: 32, tie_embeddings: false}\n"
                    "layout: {ranks: 1, threads: 1}\n")
        run(perdure, "train", f"{directory}/run.yaml", *([] if family == "gpt2" else ["model.kv_heads=2"]), *overrides,
            *(["model.tie_embeddings=true"] if family == "gpt2" else []))
        run(perdure, "ckpt", "export", f"{directory}/{family}", f"{directory}/{family}-out", "--format=megatron")
        os.remove(f"{directory}/{family}-out/iter_0000001/config.json")
        run(perdure, "ckpt", "import", f"{directory}/{family}-out", f"{directory}/{family}-in")
        run(perdure, "ckpt", "diff", "-q", f"{directory}/{family}", f"{directory}/{family}-in")
    start_ranks("families", directory)


def import_both(perdure, directory):
    for kind in make_megatron.KINDS:
        run(perdure, "ckpt", "import", f"{directory}/{kind}", f"{directory}/in-{kind}", "--layout=dp=3")
    whole, buckets = (f"{directory}/in-{kind}" for kind in make_megatron.KINDS)
    assert run(perdure, "ckpt", "diff", whole, buckets).endswith("0 of 60 arrays differ\n")
    return buckets


def main(perdure):
    with tempfile.TemporaryDirectory(prefix="perdure-peer-") as directory:
        start_ranks("save", directory)
        buckets = import_both(perdure, directory)
        print("megatron: fully_reshardable and dp_reshardable are the same state", flush=True)
        start_ranks("share", f"{directory}/shared", count=8)
        import_both(perdure, f"{directory}/shared")
        print("megatron: so they are of two tensor ranks and two stages", flush=True)
        run(perdure, "ckpt", "export", buckets, f"{directory}/out", "--format=megatron")
        start_ranks("compare", f"{directory}/fully_reshardable", f"{directory}/out")
        print("megatron: ours loads with the bits of theirs", flush=True)
        check_families(perdure, directory)
        print(f"megatron: {', '.join(FAMILIES)} load strictly", flush=True)


if __name__ == "__main__":
    if sys.argv[1].startswith("rank:"):
        make_megatron.begin(int(sys.argv[2]), *((8, 2, 2) if sys.argv[1] == "rank:share" else (2,)))
        {"rank:save": make_megatron.train_and_save, "rank:share": make_megatron.train_and_save, "rank:compare": compare_rank,
         "rank:families": load_families_rank}[sys.argv[1]](*sys.argv[3:])
    else:
        main(os.path.abspath(sys.argv[1]))
