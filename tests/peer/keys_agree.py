#!/usr/bin/env python3
"""Whether tests/golden/keys lists every key that transformers' configuration classes and llama.cpp's GGUF package know.

usage: keys_agree.py DIRECTORY [--write]   with transformers and gguf installed (PERDURE_PEER_PACKAGES)
A line is a family, a key, a value that is not the key's default, and what perdure makes of it: used, harmless or refused.
--write keeps what is there and adds new keys as "unknown", which golden.keys fails on until somebody decides.
"""
import inspect
import json
import re
import sys

try:
    import gguf
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, GenerationConfig
    from transformers import GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer
    from transformers.modeling_rope_utils import RopeParameters
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CLASSES = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
    "GPT2LMHeadModel": GPT2Config,
}
# Read from files, or written by version 4, and not attributes of a new configuration.
OLDER = {
    "torch_dtype": "float16", "name_or_path": "x", "auto_map": {"AutoConfig": "x.Y"}, "quantization_config": {"bits": 4},
    "per_layer_config": {"0": {"hidden_size": 8}}, "tie_encoder_decoder": True, "pruned_heads": {"0": [1]},
    "is_decoder": True, "cross_attention_hidden_size": 8, "add_cross_attention": True, "torchscript": True,
    "use_bfloat16": True, "tf_legacy_loss": True, "finetuning_task": "x", "task_specific_params": {"x": 1}, "prefix": "x",
    "sep_token_id": 3, "decoder_start_token_id": 3, "attn_implementation": "eager", "gradient_checkpointing": True,
    "tokenizer_class": "x", "num_labels": 3,
}
ROPE_OLDER = {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5,
              "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 128}
ROPE = {"rope_theta": 5000.0, "rope_type": "linear", "partial_rotary_factor": 0.5, "factor": 4.0,
        "original_max_position_embeddings": 64, "low_freq_factor": 2.0, "high_freq_factor": 8.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 64}
SPECIAL = {
    "architectures": {"architectures": ["OtherForCausalLM"]},
    "model_type": {"model_type": "other"},
    "sliding_window": {**WINDOW, "max_window_layers": 0},
    "use_sliding_window": {**WINDOW, "max_window_layers": 0},
    "max_window_layers": {**WINDOW, "max_window_layers": 1},
    "layer_types": {"layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 64},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    "rope_theta": {"rope_theta": 5000.0, "rope_parameters": None},
    "rope_scaling": {"rope_scaling": ROPE_OLDER["rope_scaling"], "rope_parameters": None},
    "original_max_position_embeddings": {"original_max_position_embeddings": 64},
    "hidden_size": {"hidden_size": 128}, "n_embd": {"n_embd": 128}, "num_key_value_heads": {"num_key_value_heads": 4},
    "num_attention_heads": {"num_attention_heads": 8}, "n_head": {"n_head": 8}, "head_dim": {"head_dim": 32},
    "dtype": {"dtype": "float16"},
}


def another(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.25
    return {str: "other", list: ["x"], dict: {"0": "x"}}.get(type(value), 7)


def config_lines():
    for name, cls in CLASSES.items():
        values = {k: another(v) for k, v in cls().to_dict().items()}
        values |= {k: another(v) for k, v in GenerationConfig._get_default_generation_params().items() if k not in values}
        values |= OLDER | (ROPE_OLDER if name != "GPT2LMHeadModel" else {})
        if name == "MistralForCausalLM":
            SPECIAL["sliding_window"] = {"sliding_window": 64}
        elif name.startswith("Qwen"):
            SPECIAL["sliding_window"] = {**WINDOW, "max_window_layers": 0}
        for key, value in values.items():
            yield name, key, json.dumps(SPECIAL.get(key, {key: value}))
        if "rope_parameters" in values:
            for key in RopeParameters.__annotations__:
                changed = {**LLAMA3, key: ROPE.get(key, 0.5)}
                if key == "rope_type":
                    changed = {k: changed[k] for k in ("rope_type", "rope_theta", "factor")}
                yield name, "rope_parameters." + key, json.dumps({"rope_parameters": changed})


def strings(cls):
    for name, value in vars(cls).items():
        if inspect.isclass(value) and not name.startswith("_"):
            yield from strings(value)
        elif isinstance(value, str) and not name.startswith("_"):
            yield value


GGUF = {
    "general.architecture": "text other", "general.type": "text adapter", "general.alignment": "u32 64",
    "tensor_data_layout": "text other", "attention.causal": "bool 0", "rope.scaling.type": "text yarn",
    "rope.scaling.finetuned": "bool 1", "rope.scaling.factor": "f32 4", "rope.freq_base": "f32 5000",
    "attention.layer_norm_rms_epsilon": "f32 0.5", "attention.layer_norm_epsilon": "f32 0.5", "context_length": "u32 512",
    "attention.head_count": "u32 8", "attention.head_count_kv": "u32 4", "attention.key_length": "u32 32",
    "embedding_length": "u32 128", "split.count": "u32 2", "tokenizer.ggml.model": "text other",
    "tokenizer.ggml.pre": "text other", "tokenizer.ggml.tokens": "list", "tokenizer.ggml.scores": "list",
    "tokenizer.ggml.merges": "list", "tokenizer.ggml.token_type": "list", "tokenizer.ggml.precompiled_charsmap": "list",
}


def gguf_lines():
    keys = list(dict.fromkeys(strings(gguf.Keys))) + ["{arch}.rope.scale_linear"]
    for key in keys:
        value = GGUF.get(key.replace("{arch}.", "")) or ("bool 1" if ".add_" in key or "remove_" in key else "u32 7")
        families = ("llama", "qwen2", "qwen3", "gpt2") if "{arch}" in key else ("llama",)
        key = key.replace("{id}", "0").replace("{name}", "tool").replace("{dense}", "dense_2")
        for family in families:
            yield family, key.replace("{arch}", family), value


TOKENIZER = {
    "added_tokens_decoder": {"3": {"content": "c", "special": True}}, "additional_special_tokens": ["c"], "extra_special_tokens": ["c"],
    "model_specific_special_tokens": {"image_token": "c"}, "tokenizer_class": "LlamaTokenizerFast", "auto_map": {"AutoTokenizer": "x.Y"},
    "add_bos_token": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
    "add_eos_token": {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True},
}
# Of version 4, and what is in files.
TOKENIZER_OLDER = ("image_token", "image_token_id", "tokenizer_class", "auto_map", "do_lower_case", "strip_accents", "tokenize_chinese_chars",
                   "sp_model_kwargs", "spaces_between_special_tokens", "from_slow", "special_tokens_map_file", "trim_offsets", "is_local",
                   "local_files_only", "_commit_hash", "tokenizer_type", "use_fast", "device_map", "init_inputs")


def tokenizer_lines():
    """What constructors take, by name or out of their keywords."""
    keys = [*PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES]
    for cls in (PreTrainedTokenizerBase, PreTrainedTokenizerFast, LlamaTokenizer, GPT2Tokenizer, Qwen2Tokenizer):
        source = inspect.getsource(cls.__init__)
        keys += re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source)
        keys += [name for name, p in inspect.signature(cls.__init__).parameters.items()
                 if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and name != "self"]
    for key in dict.fromkeys([*keys, *TOKENIZER_OLDER]):
        value = TOKENIZER.get(key, "c" if key.endswith("_token") else True)
        yield "tokenizer", key, json.dumps(value if isinstance(value, dict) and key in value else {key: value})


def main(directory, write):
    failed = False
    for file, lines in (("config_json.tsv", config_lines()), ("gguf.tsv", gguf_lines()), ("tokenizer_config.tsv", tokenizer_lines())):
        path = f"{directory}/{file}"
        try:
            rows = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")]
        except FileNotFoundError:
            rows = []
        known = {(row[0], row[1]): row for row in rows}
        wanted = {(family, key): [family, key, value] for family, key, value in lines}
        missing = [row for place, row in wanted.items() if place not in known]
        if write:
            kept = [value + [known.get(place, [""] * 3 + ["unknown"])[3]] for place, value in wanted.items()]
            # Keys that a newer version has dropped are still in files.
            kept += [row for place, row in known.items() if place not in wanted]
            with open(path, "w", encoding="utf-8") as out:
                out.writelines("\t".join(row) + "\n" for row in kept)
        for family, key, _ in missing:
            print(f"{path}: {family} has the key {key}, and the list does not: {sys.argv[0]} {directory} --write")
        failed = failed or bool(missing)
    sys.exit(1 if failed and not write else 0)


main(sys.argv[1], "--write" in sys.argv[2:])
