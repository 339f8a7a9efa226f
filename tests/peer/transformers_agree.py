#!/usr/bin/env python3
"""transformers and perdure compute the same models: logits, greedy text, gradients, and 20 steps of training.

usage: transformers_agree.py PERDURE FAMILIES [FAMILY...]     (FAMILIES: the program of families.c)

For each family: transformers reads the config.json that perdure writes, and the other way round; weights go both ways through
perdure's table of names and views. PERDURE_PEER_PYTHON names an interpreter that has torch (CPU), transformers and h5py. Exit
77: there is none.
"""
import copy
import filecmp
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

if os.environ.get("PERDURE_PEER_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["PERDURE_PEER_PYTHON"], [os.environ["PERDURE_PEER_PYTHON"], *sys.argv])
try:
    import h5py
    import numpy
    import safetensors
    import torch
    import transformers
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
except ImportError as missing:
    print(f"skipped: {missing}; PERDURE_PEER_PYTHON names an interpreter that has torch, transformers and h5py", file=sys.stderr)
    sys.exit(77)

LENGTH, SEQUENCES, STEPS, RATE, TOLERANCE = 32, 8, 20, 1e-3, 1e-5
SIZES = dict(vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48, num_key_value_heads=2)
EXTRA = {"olmoe": {"z_loss": 0.01}, "glm4_moe": {"z_loss": 0.01, "bias_step": 0.01}}  # keys that config.json does not have
FAMILIES = {
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=8, rope_theta=1e6,
                                                  router_aux_loss_coef=0.05),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**{**SIZES, "tie_word_embeddings": True}, **EXPERTS, head_dim=24,
                                                     norm_topk_prob=True, router_aux_loss_coef=0.05),
    "olmoe": lambda: transformers.OlmoeConfig(**SIZES, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3,
                                              router_aux_loss_coef=0.05),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **{**SIZES, "num_hidden_layers": 3}, num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=48, n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.5, attention_bias=True,
        use_qk_norm=True, first_k_dense_replace=1),
    "glm4_air": lambda: transformers.Glm4MoeConfig(
        **{**SIZES, "num_hidden_layers": 3}, num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=48, n_shared_experts=1, first_k_dense_replace=2, norm_topk_prob=False),
    "llama": lambda: transformers.LlamaConfig(**{**SIZES, "tie_word_embeddings": True}, num_key_value_heads=2, rope_scaling=LLAMA3,
                                              rope_theta=5e5),
    "linear": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=4, head_dim=24,
                                               rope_scaling=dict(rope_type="linear", factor=2.5)),
    "mistral": lambda: transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, num_key_value_heads=1, rope_theta=1e6),
    "qwen3": lambda: transformers.Qwen3Config(**{**SIZES, "tie_word_embeddings": True}, num_key_value_heads=2, head_dim=24,
                                              rope_theta=1e6),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=None,
                                            eos_token_id=None),
}


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def write_weights(model, directory):
    """state_dict as it is, copies of tied tensors included."""
    offset = 0
    with open(f"{directory}/weights.bin", "wb") as data, open(f"{directory}/weights.txt", "w", encoding="utf-8") as names:
        for name, tensor in one_by_one(model).items():
            data.write(tensor.detach().contiguous().float().numpy().tobytes())
            print(name, offset, tensor.dim(), *tensor.shape, file=names)
            offset += tensor.numel()


def one_by_one(model):
    """state_dict with one tensor an expert, as in files on the hub."""
    state = {}
    for name, tensor in model.state_dict().items():
        prefix, expert = name.rsplit(".mlp.", 1) if ".mlp." in name else (name, "")
        if model.config.model_type == "mixtral" and expert:
            prefix, parts = f"{prefix}.block_sparse_moe", ("w1", "w3", "w2")
        else:
            prefix, parts = f"{prefix}.mlp", ("gate_proj", "up_proj", "down_proj")
        if expert == "experts.gate_up_proj":
            for e, both in enumerate(tensor):
                for part, half in zip(parts, both.chunk(2)):
                    state[f"{prefix}.experts.{e}.{part}.weight"] = half
        elif expert == "experts.down_proj":
            state |= {f"{prefix}.experts.{e}.{parts[2]}.weight": down for e, down in enumerate(tensor)}
        else:
            state[f"{prefix}.{expert}" if expert else name] = tensor
    return state


def load(model, state):
    """Every tensor of `state` has a place, and none is left but the copy of a tied one."""
    if hasattr(model.config, "num_experts_per_tok"):
        ours = one_by_one(model)
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        assert set(ours) - tied == set(state), set(ours) ^ set(state)
        with torch.no_grad():
            for name, tensor in state.items():
                ours[name].copy_(tensor)
        return
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(missing) <= tied and not unexpected, (missing, unexpected)
    model.tie_weights()


def read_weights(directory):
    values = numpy.fromfile(f"{directory}/weights.bin", dtype=numpy.float32)
    state = {}
    with open(f"{directory}/weights.txt", encoding="utf-8") as lines:
        for line in lines:
            name, offset, _, *shape = line.split()
            shape = [int(n) for n in shape]
            state[name] = torch.from_numpy(values[int(offset):int(offset) + math.prod(shape)].reshape(shape).copy())
    return state


def read_checkpoint(directory, family, kind="param"):
    """Parameters, or moments, of the newest checkpoint under the names of transformers, through h5py."""
    newest = sorted(os.listdir(f"{directory}/checkpoints"))
    newest = [name for name in newest if name.startswith("step-")][-1]
    with h5py.File(f"{directory}/checkpoints/{newest}/index.h5", "r") as index:
        state = {name: torch.from_numpy(data[...]) for name, data in index[kind].items()}
    if family != "gpt2":
        return state
    for name in [n for n in state if ".q_proj." in n]:
        parts = torch.cat([state.pop(name.replace("q_proj", p)) for p in ("q_proj", "k_proj", "v_proj")])
        state[name.replace("q_proj", "c_attn")] = parts
    across = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {name: data.T.contiguous() if name.endswith(across) else data for name, data in state.items()}


def check_logits(families, model, directory, what):
    tokens = [(i * 37 + i // 5) % 256 for i in range(100)]
    write_weights(model, directory)
    run(families, "logits", directory, f"{directory}/logits.bin", *tokens)
    ours = torch.from_numpy(numpy.fromfile(f"{directory}/logits.bin", dtype=numpy.float32)).reshape(len(tokens), -1)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0]
    error = ((ours - theirs).double().norm() / theirs.double().norm()).item()
    assert error < TOLERANCE, f"{what}: logits differ by {error:.2e}"
    return error


def auxiliary(config, extra, routed):
    """Means over the blocks with experts, of a whole micro-batch. `routed`: what each router returned."""
    balance = sum(load_balancing_loss_func((logits,), 8, config.num_experts_per_tok) for logits, _, _ in routed) / len(routed)
    z = sum(torch.logsumexp(logits, -1).square().mean() for logits, _, _ in routed) / len(routed)
    return getattr(config, "router_aux_loss_coef", 0.0) * balance + extra.get("z_loss", 0.0) * z


def move_biases(model, extra, chosen):
    """Of the experts that had more tokens than the mean down, of the others up. `chosen`: by block, of a step."""
    routers = [m for m in model.modules() if hasattr(m, "e_score_correction_bias")]
    for router, indices in zip(routers, chosen):
        counts = torch.bincount(indices.flatten(), minlength=8).double()
        router.e_score_correction_bias -= extra.get("bias_step", 0.0) * torch.sign(counts - counts.mean()).float()


def gradients_of(model):
    twin = copy.deepcopy(model)
    for ours, theirs in zip(twin.parameters(), model.parameters()):
        ours.data = theirs.grad
    return one_by_one(twin)


def check_gradients(perdure, family, directory, expected):
    """Of the first step, clipped: the first moment after it is a tenth of them."""
    run(perdure, "train", f"{directory}/run.yaml", f"run.dir={directory}/one", "run.steps=1", *(f"model.{key}={value}" for key, value in EXTRA.get(family, {}).items()))
    found = {name: data.double() / 0.1 for name, data in read_checkpoint(f"{directory}/one", family, "exp_avg").items()}
    compared = {name: data.double() for name, data in expected.items() if name in found and "correction_bias" not in name}
    assert len(compared) >= len(found) - sum("correction_bias" in name for name in found), set(found) - set(compared)
    whole = math.sqrt(sum(data.square().sum().item() for data in compared.values()))
    return max((found[name] - data).norm().item() / max(data.norm().item(), 1e-3 * whole) for name, data in compared.items())


def train_theirs(model, text, extra):
    """AdamW with the decay of matrices alone; every step has all samples."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=RATE,
                                  betas=(0.9, 0.95), eps=1e-8)
    samples = torch.tensor([list(text[i * LENGTH:i * LENGTH + LENGTH + 1]) for i in range(SEQUENCES)])
    routed, losses, gradients = [], [], None
    hooks = [m.register_forward_hook(lambda _m, _in, out: routed.append(out))
             for name, m in model.named_modules() if name.endswith("mlp.gate")]
    for _ in range(STEPS):
        routed.clear()
        logits = model(samples[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), samples[:, 1:].reshape(-1))
        if routed:
            loss = loss + auxiliary(model.config, extra, routed)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = gradients or gradients_of(model)
        optimizer.step()
        move_biases(model, extra, [indices for _, _, indices in routed])
        losses.append(loss.item())
    for hook in hooks:
        hook.remove()
    return losses, gradients


def train_ours(perdure, directory, text, extra):
    with open(f"{directory}/text", "wb") as f:
        f.write(text)
    with open(f"{directory}/model.yaml", encoding="utf-8") as f:
        model = f.read()
    with open(f"{directory}/run.yaml", "w", encoding="utf-8") as f:
        f.write(f"{model}run: {{dir: {directory}/run, steps: {STEPS}, seed: 7}}\ndata: {{train: {directory}/text}}\n"
                f"batch: {{sequences: {SEQUENCES}, micro_batch: {SEQUENCES if extra is not None else 2}, context: {LENGTH}}}\nnumerics: {{precision: fp32}}\n"
                f"optimizer: {{lr: {RATE}, min_lr: {RATE}, warmup_steps: 0}}\nlayout: {{ranks: 1, threads: 1}}\n")
    run(perdure, "train", f"{directory}/run.yaml", *(f"model.{key}={value}" for key, value in (extra or {}).items()))
    with open(f"{directory}/run/metrics.jsonl", encoding="utf-8") as lines:
        return [entry["loss"] + entry.get("router_loss", 0.0) for entry in map(json.loads, lines) if "loss" in entry]


def load_exported(directory, name):
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(f"{directory}/{name}", dtype=torch.float32, attn_implementation="eager",
                                                                       output_loading_info=True)
    assert not any(report.values()), (name, report)
    return loaded.eval()


def check_files(perdure, model, directory):
    """transformers loads both forms that perdure exports, with the same logits, and perdure imports both that transformers saves; nothing
    is dropped."""
    blocks = model.config.num_hidden_layers - getattr(model.config, "first_k_dense_replace", 0)
    tokens, counts = torch.tensor([[(i * 37 + i // 5) % 256 for i in range(100)]]), {"separate": 3 * 8 * blocks, "fused": 2 * blocks}
    with torch.no_grad():
        expected = model(tokens).logits
    for form, count in counts.items():
        said = json.loads(run(perdure, "ckpt", "export", f"{directory}/run", f"{directory}/{form}", "--format=safetensors", f"--experts={form}", "--json"))
        assert said["experts"]["tensors_out"] == count and said["experts"]["elements_in"] == said["experts"]["elements_out"], said
        with safetensors.safe_open(f"{directory}/{form}/model.safetensors", "pt") as file:
            assert sum(".experts." in name for name in file.keys()) == count, form
        loaded = load_exported(directory, form)
        ours, theirs = model.state_dict(), loaded.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours), form
        with torch.no_grad():
            assert torch.equal(loaded(tokens).logits, expected), form
        assert greedy(loaded, b"perdure: ", 32) == greedy(model, b"perdure: ", 32), form
        loaded.save_pretrained(f"{directory}/saved-{form}")  # in the form of the file it was loaded from
    for form, count in counts.items():
        source = f"{directory}/saved-{form}"
        with safetensors.safe_open(f"{source}/model.safetensors", "pt") as file:
            assert sum(".experts." in name for name in file.keys()) == count, (form, list(file.keys()))
        said = json.loads(run(perdure, "ckpt", "import", source, f"{directory}/imported-{form}", "--json"))
        assert said["experts"]["tensors_in"] == count and said["experts"]["elements_in"] == said["experts"]["elements_out"], said
        run(perdure, "ckpt", "export", f"{directory}/imported-{form}", f"{directory}/again-{form}", "--format=safetensors")
        assert filecmp.cmp(f"{directory}/separate/model.safetensors", f"{directory}/again-{form}/model.safetensors", shallow=False), form


def greedy(model, prompt, count):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt):]


def check(perdure, families, family, directory):
    for name in ("theirs", "ours"):
        os.mkdir(f"{directory}/{name}")
    theirs, ours = f"{directory}/theirs", f"{directory}/ours"
    FAMILIES[family]().save_pretrained(theirs)
    config = json.load(open(f"{theirs}/config.json", encoding="utf-8"))
    architecture = {"llama": "Llama", "linear": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
                    "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe", "glm4_moe": "Glm4Moe", "glm4_air": "Glm4Moe"}
    config["architectures"] = [architecture[family] + "ForCausalLM" if family in architecture else "GPT2LMHeadModel"]
    json.dump(config, open(f"{theirs}/config.json", "w", encoding="utf-8"))
    run(families, "init", f"{theirs}/config.json", 7, ours)
    transformers.GenerationConfig.from_pretrained(ours)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(ours), dtype=torch.float32,
                                                          attn_implementation="eager").eval()
    with torch.no_grad():  # norms and biases off their start
        for parameter in [*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("correction_bias"))]:
            parameter += 0.1 * torch.randn_like(parameter)
    first = check_logits(families, model, theirs, f"{family}, random weights")
    text = bytes((i * i // 7 + 3 * i) % 61 + 40 for i in range(LENGTH * SEQUENCES + 1))
    load(model, read_weights(ours))
    extra = EXTRA.get(family, {}) if hasattr(model.config, "num_experts_per_tok") else None
    (expected, gradients), found = train_theirs(model, text, extra), train_ours(perdure, ours, text, extra)
    assert len(found) == STEPS, found
    off = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    assert off < TOLERANCE, f"{family}: losses differ by {off:.2e}: {found} {expected}"
    apart = check_gradients(perdure, family, ours, gradients)
    assert apart < TOLERANCE, f"{family}: gradients differ by {apart:.2e}"
    load(model, read_checkpoint(f"{ours}/run", family))
    last = check_logits(families, model, ours, f"{family}, trained weights")
    if extra is not None:
        check_files(perdure, model, ours)
    prompt = list(text[:12])
    sampled = json.loads(run(perdure, "sample", f"{ours}/run", "--json", "--temperature=0", "--count=40", "--tokens=" +
                             ",".join(map(str, prompt))))
    wanted = greedy(model, prompt, 40)
    assert sampled["tokens"] == wanted, f"{family}: {sampled['tokens']} {wanted}"
    print(f"{family}: logits differ by {first:.1e} and {last:.1e}, {STEPS} losses by {off:.1e} "
          f"({expected[0]:.4f} to {expected[-1]:.4f}), gradients of a tensor by {apart:.1e}, 40 tokens are the same")


def main(perdure, families, *names):
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for family in names or FAMILIES:
        directory = tempfile.mkdtemp(prefix="perdure-peer-")
        try:
            check(perdure, families, family, directory)
        finally:
            shutil.rmtree(directory)


main(*map(os.path.abspath, sys.argv[1:3]), *sys.argv[3:])
