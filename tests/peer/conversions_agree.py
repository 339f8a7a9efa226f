#!/usr/bin/env python3
"""Checkpoints of other programs, written and read by those programs themselves: equal bit for bit, and trained on from.

usage: conversions_agree.py PERDURE [CASE...]

A Hugging Face directory goes in, out and into transformers again; GGUF, DeepSpeed ZeRO-3 of 3 ranks and a distributed checkpoint of
FSDP2 on 4 ranks go in and on; ours goes out as a distributed checkpoint and on in torch. PERDURE_PEER_PYTHON names an interpreter
that has torch (CPU), transformers and gguf; the case of DeepSpeed wants deepspeed too, GGUF out accelerate. Exit 77: there is none.
"""
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import gguf
    import numpy as np
    import torch
    import torch.distributed.checkpoint as dcp
    import torch.distributed.fsdp
    import transformers
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch, transformers and gguf",
          file=sys.stderr)
    sys.exit(77)

LENGTH, SEQUENCES, RATE, STEPS, TOLERANCE = 32, 8, 1e-3, 3, 1e-5
TEXT = bytes((i * i // 7 + 3 * i) % 61 + 40 for i in range(LENGTH * SEQUENCES + 1))
SAMPLES = torch.tensor([list(TEXT[i * LENGTH:i * LENGTH + LENGTH + 1]) for i in range(SEQUENCES)])
SIZES = dict(vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, num_key_value_heads=2),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=False, num_key_value_heads=1),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=True, num_key_value_heads=2, head_dim=24),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=None,
                                            eos_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
}


# ---- both sides ----


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def make_model(family):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():  # norms and biases off their start
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def make_optimizer(model, decays=True, foreach=None):
    """Ours: decay of matrices alone."""
    if not decays:
        return torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == decays], "weight_decay": decay}
              for decays, decay in ((True, 0.1), (False, 0.0))]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8, foreach=foreach)


def loss_of(model):
    logits = model(SAMPLES[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), SAMPLES[:, 1:].reshape(-1))


def clip(parameters):
    """torch's own, also where tensors lie on several meshes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = sum((g.full_tensor() if hasattr(g, "full_tensor") else g).square().sum() for g in gradients).sqrt()
    for gradient in gradients:
        gradient.mul_(min(1.0, 1.0 / (norm.item() + 1e-6)))


def train(model, optimizer, steps):
    """Every step has all samples, so that their order does not matter."""
    losses = []
    for _ in range(steps):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        clip(model.parameters())
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_ours(perdure, directory, steps, *overrides):
    with open(f"{directory}/text", "wb") as f:
        f.write(TEXT)
    with open(f"{directory}/run.yaml", "w", encoding="utf-8") as f:
        f.write(f"run: {{dir: {directory}/run, steps: {steps}}}\ndata: {{train: {directory}/text}}\n"
                f"batch: {{sequences: {SEQUENCES}, micro_batch: 2, context: {LENGTH}}}\nnumerics: {{precision: fp32}}\n"
                f"optimizer: {{lr: {RATE}, min_lr: {RATE}, warmup_steps: 0}}\nlayout: {{ranks: 1, threads: 1}}\n")
    run(perdure, "train", f"{directory}/run.yaml", *overrides)
    with open(f"{directory}/run/metrics.jsonl", encoding="utf-8") as lines:
        return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


def check_losses(what, found, expected):
    assert len(found) == len(expected), (what, found, expected)
    off = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    assert off < TOLERANCE, f"{what}: losses differ by {off:.2e}: {found} {expected}"
    return f"{len(found)} losses differ by {off:.1e}"


def check_same(what, found, expected):
    """Bit for bit, and no tensor too many; a tied copy may be there or not."""
    for name in expected.keys() | found.keys():
        if name in found and name in expected:
            assert torch.equal(found[name], expected[name]), f"{what}: {name} differs"
        else:
            assert name == "lm_head.weight", f"{what}: {name} is on one side only"


def saved_config(model, directory):
    model.config.architectures = [type(model).__name__]
    os.makedirs(directory, exist_ok=True)
    model.config.save_pretrained(directory)


def read_out(perdure, source, directory):
    """Our checkpoint's parameters as transformers reads them."""
    run(perdure, "ckpt", "export", source, directory, "--format=safetensors")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                                    output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


def read_moments(perdure, source, directory):
    """Our checkpoint as torch reads it: {name: tensor} with moments under state.<name>.<kind>."""
    run(perdure, "ckpt", "export", source, directory, "--format=dcp")
    reader = dcp.FileSystemReader(directory)
    entries = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items() if hasattr(entry, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


# ---- a Hugging Face directory ----


def check_hugging_face(perdure, directory, family):
    model = make_model(family)
    model.save_pretrained(f"{directory}/theirs", max_shard_size="100KB" if family == "llama" else "1GB")
    run(perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/in", "--fresh-optimizer", "--layout=dp=3,tp=2")
    back = read_out(perdure, f"{directory}/in", f"{directory}/out")
    check_same(family, back.state_dict(), model.state_dict())
    found = train_ours(perdure, directory, STEPS, f"init.from={directory}/theirs")
    return "same bits in and out, " + check_losses(family, found, train(model, make_optimizer(model), STEPS))


def check_torch_save(perdure, directory):
    """Weights as before safetensors; GPT-2's lm_head and wte share a storage."""
    for family in ("gpt2", "qwen2"):
        model = make_model(family)
        saved_config(model, f"{directory}/{family}")
        torch.save(model.state_dict(), f"{directory}/{family}/pytorch_model.bin")
        run(perdure, "ckpt", "import", f"{directory}/{family}", f"{directory}/{family}-in", "--fresh-optimizer")
        check_same(family, read_out(perdure, f"{directory}/{family}-in", f"{directory}/{family}-out").state_dict(), model.state_dict())
    return "same bits"


# ---- GGUF ----


def neighbours(weight, heads):
    """Rows as llama.cpp has them: RoPE rotates neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(model, path, stored=lambda weight: (weight, None)):
    """stored  what lies there of a weight, and its type where that is not its own"""
    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>"] + [f"<0x{i:02X}>" for i in range(255, 0, -1)])
    writer.add_token_scores([0.0] * 256)
    writer.add_token_types([gguf.TokenType.UNKNOWN] + [gguf.TokenType.BYTE] * 255)
    writer.add_add_space_prefix(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_hidden_layers)
    heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        for part, count in heads.items():
            weight = neighbours(weight, count) if part in name else weight
        data, kind = stored(weight.numpy())
        writer.add_tensor(names.get_name(name, (".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_gguf(perdure, directory):
    model = make_model("llama")
    write_gguf(model, f"{directory}/model.gguf")
    run(perdure, "ckpt", "import", f"{directory}/model.gguf", f"{directory}/in", "--fresh-optimizer")
    sampled = [json.loads(run(perdure, "sample", f"{directory}/in", "--json", "--temperature=0", "--count=8", prompt))["tokens"]
               for prompt in ("--prompt=ab", "--tokens=159,158")]
    assert sampled[0] == sampled[1], sampled
    back = read_out(perdure, f"{directory}/in", f"{directory}/out")
    check_same("gguf", back.state_dict(), model.state_dict())
    found = train_ours(perdure, directory, STEPS, f"init.from={directory}/model.gguf")
    return "same bits, " + check_losses("gguf", found, train(model, make_optimizer(model), STEPS))


def quantised(weight, kind, random):
    """Blocks as gguf makes them; of those that it only reads any bits, with scales that are finite."""
    if weight.ndim == 1:
        return weight, None
    if kind.name not in ("Q4_K", "Q6_K"):
        return gguf.quants.quantize(weight, kind), None if kind.name == "F16" else kind
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (weight.size // elements, size), dtype=np.uint8)
    for half in (0, 2) if kind.name == "Q4_K" else (208,):
        blocks[:, half + 1] &= 0xbf
    return blocks.reshape(weight.shape[0], -1), kind


def check_gguf_quantised(perdure, directory):
    """Ours has the bits that gguf makes of each type."""
    kinds = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K")
    random = np.random.default_rng(1)
    config = FAMILIES["llama"]()
    config.update({"hidden_size": 256, "intermediate_size": 512, "head_dim": 64})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for kind in (gguf.GGMLQuantizationType[name] for name in kinds):
        path = f"{directory}/{kind.name}.gguf"
        write_gguf(model, path, lambda weight, kind=kind: quantised(weight, kind, random))
        run(perdure, "ckpt", "import", path, f"{directory}/in-{kind.name}", "--fresh-optimizer")
        run(perdure, "ckpt", "export", f"{directory}/in-{kind.name}", f"{directory}/out-{kind.name}.gguf", "--format=gguf")
        theirs, ours = ({t.name: t for t in gguf.GGUFReader(name).tensors} for name in (path, f"{directory}/out-{kind.name}.gguf"))
        assert theirs.keys() == ours.keys() and sum(t.tensor_type == kind for t in theirs.values()) == 15, kind.name
        for name, tensor in theirs.items():
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            assert np.array_equal(expected.view(np.uint32).ravel(), ours[name].data.view(np.uint32).ravel()), (kind.name, name)
    return f"same bits of {len(kinds)} types"


def encoded(perdure, directory, tokenizer, text):
    """Tokens of `data pack`, which reads what `sample` reads."""
    out = f"{directory}/tokens-{len(os.listdir(directory))}"
    run(perdure, "data", "pack", text, f"--output={out}", f"--tokenizer={tokenizer}")
    return np.fromfile(out, dtype=np.uint16).tolist()


def check_gguf_out(perdure, directory, family):
    """gguf reads the bits of each type, transformers computes the same logits, our tokens are those of the tokenizers package."""
    if not importlib.util.find_spec("accelerate"):
        return "skipped: no accelerate"
    vocab = 4096
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/tokenizers")
    tokenizer = {"llama": "llama3"}.get(family, "gpt2")
    sizes = {"qwen3": {"head_dim": 128}, "gpt2": {"n_positions": 1024}}.get(family, {})  # transformers reads no others from GGUF
    torch.manual_seed(1)
    config = FAMILIES[family]()
    config.update({"vocab_size": vocab, "bos_token_id": 0, "eos_token_id": 1, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(f"{directory}/theirs")
    shutil.copy(f"{golden}/{tokenizer}.json", f"{directory}/theirs/tokenizer.json")
    run(perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/in", "--fresh-optimizer")
    kinds = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
    for dtype in kinds:
        run(perdure, "ckpt", "export", f"{directory}/in", f"{directory}/{dtype}.gguf", "--format=gguf", f"--dtype={dtype}")
    plain = {t.name: t for t in gguf.GGUFReader(f"{directory}/fp32.gguf").tensors}
    for dtype, kind in kinds.items():
        for t in gguf.GGUFReader(f"{directory}/{dtype}.gguf").tensors:
            vector = len(t.shape) == 1 or t.name == "position_embd.weight"
            wanted = "F32" if vector else "F16" if kind == "Q8_0" and t.shape[0] % 32 else kind
            assert t.tensor_type.name == wanted, (dtype, t.name, t.tensor_type.name, wanted)
            expected = gguf.quants.quantize(plain[t.name].data, t.tensor_type)
            assert np.array_equal(np.asarray(t.data).view(np.uint8).ravel(), expected.view(np.uint8).ravel()), (dtype, t.name)
    again = transformers.AutoModelForCausalLM.from_pretrained(directory, gguf_file="fp32.gguf", dtype=torch.float32)
    ids = torch.arange(64).reshape(2, 32) * 61
    assert torch.equal(again(ids).logits, model(ids).logits), "logits differ"
    run(perdure, "ckpt", "import", f"{directory}/fp32.gguf", f"{directory}/back", "--fresh-optimizer")
    assert "\n0 of " in run(perdure, "ckpt", "diff", f"{directory}/in", f"{directory}/back")
    tokens = [encoded(perdure, directory, path, f"{golden}/mixed.txt") for path in (f"{directory}/theirs", f"{directory}/back")]
    assert len(tokens[0]) > 1000 and tokens[0] == tokens[1], "tokens differ"
    return "bits of four types, logits and tokens are the same"


# ---- ranks of torch ----


def start_ranks(kind, ranks, directory):
    """This program again, once a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                       "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen([sys.executable, __file__, f"rank:{kind}", directory], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for process in started:
        errors = process.communicate(timeout=600)[1]
        assert process.returncode == 0, errors[-4000:]


def write_losses(directory, losses):
    if os.environ["RANK"] == "0":
        with open(f"{directory}/losses.json", "w", encoding="utf-8") as f:
            json.dump(losses, f)


def deepspeed_engine(stage, loads_universal=False):
    import deepspeed  # takes seconds, and prints
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles for a minute; who dies meanwhile leaves a lock
    deepspeed.init_distributed("gloo")
    model = make_model("llama")
    if loads_universal:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7)  # all of it has to come from the checkpoint
    config = {"train_batch_size": int(os.environ["WORLD_SIZE"]) * SEQUENCES, "gradient_clipping": 1.0,
              "zero_allow_untested_optimizer": True, "checkpoint": {"load_universal": loads_universal},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    return deepspeed.initialize(model=model, optimizer=make_optimizer(model, not loads_universal), config=config)[0]


def deepspeed_train(engine, steps):
    losses = []
    for _ in range(steps):
        loss = loss_of(engine)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def deepspeed_rank(directory):
    engine = deepspeed_engine(3)
    deepspeed_train(engine, 2)
    engine.save_checkpoint(f"{directory}/theirs", tag="global_step2")
    write_losses(directory, deepspeed_train(engine, STEPS))


def universal_rank(directory, stage):
    """Loads ours, of one group of parameters: the loader of stage 3 gives several one step to count in. Rank 0 keeps what it has then, as DeepSpeed itself gathers it."""
    engine = deepspeed_engine(stage, loads_universal=True)
    engine.load_checkpoint(f"{directory}/universal")
    assert engine.global_steps == 2, engine.global_steps
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    state = {name: [safe_get_full_fp32_param(parameter).clone(),
                    *(safe_get_full_optimizer_state(parameter, kind).clone() for kind in ("exp_avg", "exp_avg_sq"))]
             for name, parameter in engine.module.named_parameters()}
    if os.environ["RANK"] == "0":
        torch.save(state, f"{directory}/state.pt")
    write_losses(directory, deepspeed_train(engine, STEPS))


def fsdp2_rank(directory):
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = make_model("llama")
    for block in model.model.layers:
        torch.distributed.fsdp.fully_shard(block, mesh=mesh)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    optimizer = make_optimizer(model)
    train(model, optimizer, 2)
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=f"{directory}/theirs")
    write_losses(directory, train(model, optimizer, STEPS))
    torch.distributed.destroy_process_group()


def fsdp2_tp2_rank(directory):
    """As torchtitan cuts: linears of a block over 2 ranks of tensor parallel, what is left over 2 of data parallel."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make_model("llama")
    by_column = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan = {**{name: ColwiseParallel() for name in by_column}, "self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for block in model.model.layers:
        parallelize_module(block, mesh["tp"], plan)
        torch.distributed.fsdp.fully_shard(block, mesh=mesh["dp"])
    torch.distributed.fsdp.fully_shard(model, mesh=mesh["dp"])
    optimizer = make_optimizer(model, foreach=False)
    train(model, optimizer, 2)
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=f"{directory}/theirs")
    write_losses(directory, train(model, optimizer, STEPS))
    torch.distributed.destroy_process_group()


def check_ranks(perdure, directory, kind, ranks):
    """The ranks save after two steps and continue; so do we."""
    if kind == "deepspeed" and not importlib.util.find_spec("deepspeed"):
        return "skipped: no deepspeed"
    start_ranks(kind, ranks, directory)
    saved_config(make_model("llama"), f"{directory}/theirs")
    os.makedirs(f"{directory}/run")
    said = json.loads(run(perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/run/checkpoints", "--layout=dp=3", "--json"))
    assert (said["step"], said["zeroed"]) == (2, 0), said
    found = train_ours(perdure, directory, 2 + STEPS, f"init.from={directory}/theirs")
    with open(f"{directory}/losses.json", encoding="utf-8") as f:
        return "moments came along, " + check_losses(kind, found, json.load(f))


# ---- experts ----


def check_gguf_experts(perdure, directory):
    """Every tensor has the name that llama.cpp's own map gives it, experts stacked, and no other; transformers' weights come back."""
    sizes = dict(SIZES, num_key_value_heads=2, num_experts_per_tok=2)
    families = {"LLAMA": transformers.MixtralConfig(**sizes, num_local_experts=4),
                "QWEN3MOE": transformers.Qwen3MoeConfig(**sizes, num_experts=4, moe_intermediate_size=48, head_dim=16, norm_topk_prob=True),
                "OLMOE": transformers.OlmoeConfig(**sizes, num_experts=4),
                "GLM4_MOE": transformers.Glm4MoeConfig(**sizes, n_routed_experts=4, moe_intermediate_size=48, n_shared_experts=1, head_dim=16,
                                                       first_k_dense_replace=1)}
    for arch, config in families.items():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(f"{directory}/{arch}")
        run(perdure, "ckpt", "export", f"{directory}/{arch}", f"{directory}/{arch}.gguf", "--format=gguf")
        found = {t.name: list(reversed(t.shape.tolist())) for t in gguf.GGUFReader(f"{directory}/{arch}.gguf").tensors}
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], config.num_hidden_layers)
        for name, tensor in model.state_dict().items():
            theirs = name.replace("e_score_correction_bias", "e_score_correction.bias")
            shapes = {theirs: list(tensor.shape)}
            if theirs.endswith("gate_up_proj"):
                half = [tensor.shape[0], tensor.shape[1] // 2, tensor.shape[2]]
                shapes = {theirs.replace("gate_up", part): half for part in ("gate", "up")}
            for theirs, shape in shapes.items():
                theirs += ".weight" if theirs.endswith("_proj") else ""
                assert found.pop(names.get_name(theirs, (".weight", ".bias"))) == shape, (arch, theirs, shape)
        assert not found, (arch, found)
        back = read_out(perdure, f"{directory}/{arch}.gguf", f"{directory}/{arch}.out")
        check_same(arch, back.state_dict(), model.state_dict())
    return "same names and bits of 4 families"


# ---- a distributed checkpoint whose optimizer does not have every parameter ----


def check_part(perdure, directory, is_numbered):
    """frozen: parameters without gradients have no moments. numbered: an optimizer's own state_dict counts parameters and does not name
    them. Without --fresh-optimizer both are refused with that word; with it what has no moments begins at zero."""
    model = make_model("llama")
    if not is_numbered:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(("model.embed_tokens", "model.layers.0")))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    train(model, optimizer, 2)
    if is_numbered:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    else:
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=f"{directory}/theirs", no_dist=True)
    saved_config(model, f"{directory}/theirs")
    refused = subprocess.run([perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/no"], capture_output=True, text=True, timeout=600)
    assert refused.returncode == 78 and "give --fresh-optimizer, and these moments begin at zero" in refused.stderr, refused
    said = json.loads(run(perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/in", "--fresh-optimizer", "--layout=dp=2", "--json"))
    check_same("part", read_out(perdure, f"{directory}/in", f"{directory}/out").state_dict(), model.state_dict())
    moments, zeroed = read_moments(perdure, f"{directory}/in", f"{directory}/dcp"), 0
    for name, parameter in model.named_parameters():
        has = parameter.requires_grad and not is_numbered
        for kind in ("exp_avg", "exp_avg_sq"):
            found = next(v for k, v in moments.items() if k.endswith(f"state.{name}.{kind}"))
            assert torch.equal(found, optimizer.state[parameter][kind] if has else torch.zeros_like(found)), (name, kind)
            zeroed += not has
    assert (said["step"], said["zeroed"]) == (2, zeroed), (said, zeroed)
    train_ours(perdure, directory, 3, f"init.from={directory}/theirs")
    return f"{zeroed} moments begin at zero, the others came along"


# ---- out to torch ----


def check_out(perdure, directory):
    make_model("llama").save_pretrained(f"{directory}/theirs")
    train_ours(perdure, directory, 2, f"init.from={directory}/theirs", "checkpoint.every=2")
    model = read_out(perdure, f"{directory}/run", f"{directory}/out")
    optimizer = make_optimizer(model)
    state = read_moments(perdure, f"{directory}/run", f"{directory}/dcp")
    for name, parameter in model.named_parameters():
        moments = {kind: [v for k, v in state.items() if k.endswith(f"state.{name}.{kind}")] for kind in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(2.0), **{kind: found[0] for kind, found in moments.items()}}
        assert torch.equal(parameter, next(v for k, v in state.items() if k.endswith(name) and "state." not in k)), name
    expected = train_ours(perdure, directory, 2 + STEPS, f"init.from={directory}/theirs")[2:]
    return check_losses("out", train(model, optimizer, STEPS), expected)


# ---- out to llm.c ----


def read_llmc(path, header_numbers):
    """Sixteen tensors of each kind behind a header of 256 numbers, as llm.c's train_gpt2.cu lays them out."""
    with open(path, "rb") as f:
        header = np.fromfile(f, "<i4", 256)
        is_model = header[0] == 20240326
        values = np.fromfile(f, "<f4" if not is_model or header[1] == 3 else "<u2")
    if is_model and header[1] == 5:
        values = (values.astype("<u4") << 16).view("<f4")
    context, _, layers, _, c, padded = header[2:8] if is_model else header_numbers
    shapes = {"wte": (padded, c), "wpe": (context, c), "ln1w": (layers, c), "ln1b": (layers, c), "qkvw": (layers, 3 * c, c),
              "qkvb": (layers, 3 * c), "attprojw": (layers, c, c), "attprojb": (layers, c), "ln2w": (layers, c), "ln2b": (layers, c),
              "fcw": (layers, 4 * c, c), "fcb": (layers, 4 * c), "fcprojw": (layers, c, 4 * c), "fcprojb": (layers, c), "lnfw": (c,),
              "lnfb": (c,)}
    kinds, at = [], 0
    while at < len(values):
        kinds.append({})
        for name, shape in shapes.items():
            count = int(np.prod(shape))
            kinds[-1][name] = values[at:at + count].reshape(shape)
            at += count
    assert at == len(values), path
    return header, kinds


def check_llmc(perdure, directory):
    config = FAMILIES["gpt2"]()
    config.vocab_size = 200  # padded to 256
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(f"{directory}/theirs")
    run(perdure, "ckpt", "import", f"{directory}/theirs", f"{directory}/in", "--fresh-optimizer")
    run(perdure, "ckpt", "export", f"{directory}/in", f"{directory}/out", "--format=llmc", "--dtype=bf16")
    header, (rounded,) = read_llmc(f"{directory}/out/model_00000000.bin", None)
    assert list(header[:8]) == [20240326, 5, 128, 200, 2, 4, 64, 256], header[:8]
    state, (m, v, master) = read_llmc(f"{directory}/out/state_00000000_00000.bin", header[2:8])
    assert list(state[:5]) == [20240527, 1, 1, 0, 1] and not any(t.any() for kind in (m, v) for t in kind.values())
    names = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias"}
    blocks = {"ln1": "ln_1", "qkv": "attn.c_attn", "attproj": "attn.c_proj", "ln2": "ln_2", "fc": "mlp.c_fc", "fcproj": "mlp.c_proj"}
    theirs = {name.removeprefix("transformer."): value for name, value in model.state_dict().items()}
    for name, value in master.items():
        ends = {"w": "weight", "b": "bias"}
        expected = [theirs[names[name]]] if name in names else [theirs[f"h.{i}.{blocks[name[:-1]]}.{ends[name[-1]]}"] for i in range(2)]
        expected = torch.stack([t.T if t.ndim == 2 and name not in names else t for t in expected])
        found = torch.from_numpy(value.copy()).reshape(-1, *expected.shape[1:]) if name not in names else torch.from_numpy(value[None].copy())
        assert not found[:, expected.shape[1]:].any(), name  # rows that pad
        assert torch.equal(found[:, :expected.shape[1]], expected), name
        assert torch.equal(torch.from_numpy(rounded[name].copy()), torch.from_numpy(value.copy()).bfloat16().float()), name
    return "same bits by llm.c's layout"


# ---- out to DeepSpeed ----


def check_universal(perdure, directory, stage):
    if not importlib.util.find_spec("deepspeed"):
        return "skipped: no deepspeed"
    make_model("llama").save_pretrained(f"{directory}/theirs")
    train_ours(perdure, directory, 2, f"init.from={directory}/theirs", "checkpoint.every=2", "optimizer.weight_decay=0")
    run(perdure, "ckpt", "export", f"{directory}/run", f"{directory}/universal", "--format=universal")
    state = read_moments(perdure, f"{directory}/run", f"{directory}/dcp")
    start_ranks(f"universal{stage}", 2, directory)
    for name, found in torch.load(f"{directory}/state.pt").items():
        expected = [state[f"model.{name}"], *(state[f"optimizer.state.{name}.{kind}"] for kind in ("exp_avg", "exp_avg_sq"))]
        assert all(torch.equal(a, b.reshape(a.shape)) for a, b in zip(expected, found)), name
    expected = train_ours(perdure, directory, 2 + STEPS, f"init.from={directory}/theirs", "optimizer.weight_decay=0")[2:]
    with open(f"{directory}/losses.json", encoding="utf-8") as f:
        found = json.load(f)
    return "same bits in 2 ranks of DeepSpeed, " + check_losses("universal", found, expected)


CASES = {
    **{family: lambda perdure, directory, family=family: check_hugging_face(perdure, directory, family) for family in FAMILIES},
    "torch_save": check_torch_save,
    "gguf": check_gguf,
    "gguf-quantised": check_gguf_quantised,
    **{f"gguf-out-{family}": lambda perdure, directory, family=family: check_gguf_out(perdure, directory, family)
       for family in FAMILIES},
    "gguf-experts": check_gguf_experts,
    "deepspeed": lambda perdure, directory: check_ranks(perdure, directory, "deepspeed", 3),
    "fsdp2": lambda perdure, directory: check_ranks(perdure, directory, "fsdp2", 4),
    "fsdp2_tp2": lambda perdure, directory: check_ranks(perdure, directory, "fsdp2_tp2", 4),
    "dcp_frozen": lambda perdure, directory: check_part(perdure, directory, False),
    "dcp_numbered": lambda perdure, directory: check_part(perdure, directory, True),
    "llmc": check_llmc,
    "out": check_out,
    **{f"universal{stage}": lambda perdure, directory, stage=stage: check_universal(perdure, directory, stage) for stage in (1, 2, 3)},
}


def main(perdure, *names):
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in names or CASES:
        directory = tempfile.mkdtemp(prefix="perdure-peer-")
        try:
            print(f"{name}: {CASES[name](os.path.abspath(perdure), directory)}", flush=True)
        finally:
            shutil.rmtree(directory)


if sys.argv[1].startswith("rank:"):
    torch.set_num_threads(1)
    {"rank:deepspeed": deepspeed_rank, "rank:fsdp2": fsdp2_rank, "rank:fsdp2_tp2": fsdp2_tp2_rank,
     **{f"rank:universal{stage}": lambda directory, stage=stage: universal_rank(directory, stage) for stage in (1, 2, 3)},
     }[sys.argv[1]](sys.argv[2])
else:
    main(*sys.argv[1:])
