"""Models of transformers that perdure has too."""
import os


def llama_config(number_bytes, directory):
    """Of a Llama whose state has about so many bytes; config.json lies in the directory, for perdure."""
    import transformers
    width, vocabulary = (256, 1024) if number_bytes < 512 << 20 else (768, 32000)
    block = 12 * width * width
    layers = max(1, (number_bytes // 12 - 2 * vocabulary * width) // block)
    config = transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers,
                                      num_attention_heads=width // 64, tie_word_embeddings=False, max_position_embeddings=1024,
                                      bos_token_id=None, eos_token_id=None, architectures=["LlamaForCausalLM"])
    os.makedirs(directory, exist_ok=True)
    config.save_pretrained(directory)
    return config


def llama(number_bytes, directory):
    import torch
    import transformers
    config = llama_config(number_bytes, directory)
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def preset(name, tokens):
    """perdure's preset of that name, for sequences of so many tokens at least."""
    import torch
    import transformers
    config = {"gpt2-124m": lambda: transformers.GPT2Config(n_positions=max(1024, tokens), attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
              "byte-1m": lambda: transformers.LlamaConfig(
                  vocab_size=256, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=max(256, tokens), bos_token_id=None,
                  eos_token_id=None),
              "moe": lambda: transformers.MixtralConfig(  # of perdure bench step --preset=moe
                  vocab_size=50257, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=12,
                  num_key_value_heads=12, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=512,
                  sliding_window=None, bos_token_id=None, eos_token_id=None)}[name]()
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
