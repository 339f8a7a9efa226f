#!/usr/bin/env python3
"""Makes the golden files of Megatron-Core's distributed checkpoints: make_megatron.py DIRECTORY [TP PP] (megatron-core, torch; CPU,
2 data-parallel ranks).

One small Llama after two steps of Megatron's distributed optimizer on gradients at random, saved twice: fully_reshardable, and
dp_reshardable in three buckets, which end on multiples of 128 (elsewhere Megatron 0.16 itself saves them fully_reshardable shifted).
With TP and PP it is another one, whose vectors fill what they are aligned to: Megatron saves no buckets that end otherwise.
Megatron asks for CUDA in places where it needs none; what it makes "on cuda" is made on the CPU.
"""
import argparse
import os
import subprocess
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

KINDS = ("fully_reshardable", "dp_reshardable")
SIZES = dict(num_layers=2, hidden_size=16, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=24, kv_channels=4)
SHARED = dict(num_layers=2, hidden_size=64, num_attention_heads=2, num_query_groups=2, ffn_hidden_size=8, kv_channels=8)
VOCAB, CONTEXT, EPSILON, BASE = 40, 64, 1e-5, 20000


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(a, (str, torch.device)) and str(a).startswith("cuda") else a for a in args)
        if name == "cuda":
            return args[0]
        if name == "type" and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def sizes():
    from megatron.core import parallel_state
    return SHARED if parallel_state.get_model_parallel_group().size() > 1 else SIZES


def begin(rank, world, tp=1, pp=1):
    """Megatron on `world` ranks of gloo; MASTER_PORT is the caller's."""
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.is_current_stream_capturing = lambda: False
    OnCpu().__enter__()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(tp, pp)


def share_embedding(model, of):
    """A tied embedding lies on the first stage and on the last; `of` what the first has of it becomes the last's."""
    from megatron.core import parallel_state
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if stages > 1 and parallel_state.is_rank_in_embedding_group():
        dist.broadcast(of(model.shared_embedding_or_output_weight()), parallel_state._EMBEDDING_GLOBAL_RANKS[0],
                       group=parallel_state.get_embedding_group())


def make_model(bucket_size=None):
    """This rank's part of the model behind its distributed data parallel, and its optimizer."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(5 + stage)
    config = TransformerConfig(**sizes(), use_cpu_initialization=True, normalization="RMSNorm", gated_linear_unit=True,
                               activation_func=torch.nn.functional.silu, add_bias_linear=False, masked_softmax_fusion=False,
                               bias_dropout_fusion=False, gradient_accumulation_fusion=False, apply_rope_fusion=False,
                               layernorm_epsilon=EPSILON, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
                               tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
                               pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size())
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=VOCAB, max_sequence_length=CONTEXT,
                     pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
                     position_embedding_type="rope", share_embeddings_and_output_weights=True, rotary_base=BASE).bfloat16()
    with torch.no_grad():  # each norm another, so that none is mistaken for one beside it
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        share_embedding(model, lambda weight: weight)
    parallel = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=bucket_size is not None,
                                             bucket_size=bucket_size)
    model = DistributedDataParallel(config, parallel, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True)
    return model, get_megatron_optimizer(settings, [model])


def metadata(kind):
    return {"distrib_optim_sharding_type": kind, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}


def arguments():
    """What Megatron's command line would have said."""
    return argparse.Namespace(**sizes(), group_query_attention=True,
                              max_position_embeddings=CONTEXT, padded_vocab_size=VOCAB, normalization="RMSNorm",
                              norm_epsilon=EPSILON, position_embedding_type="rope", rotary_base=BASE, swiglu=True,
                              add_bias_linear=False, add_qkv_bias=False, qk_layernorm=False,
                              untie_embeddings_and_output_weights=False, consumed_train_samples=16)


def train_and_save(directory):
    from megatron.core import dist_checkpointing, parallel_state
    model, optimizer = make_model(bucket_size=1700 if sizes() is SIZES else None)
    for step in range(2):
        torch.manual_seed(step + 100 * parallel_state.get_pipeline_model_parallel_rank())
        for parameter in model.parameters():
            parameter.main_grad.copy_(torch.randn_like(parameter.main_grad))
        share_embedding(model.module, lambda weight: weight.main_grad)
        optimizer.step()
    for kind in KINDS:
        path = f"{directory}/{kind}/iter_0000002"
        if dist.get_rank() == 0:
            os.makedirs(path, exist_ok=True)
            with open(f"{directory}/{kind}/latest_checkpointed_iteration.txt", "w", encoding="utf-8") as f:
                f.write("2")
        dist.barrier()
        state = {"model": model.module.sharded_state_dict(prefix="", metadata=metadata(kind))}
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=False, metadata=metadata(kind))
        state.update(iteration=2, checkpoint_version=3.0, args=arguments())
        dist_checkpointing.save(state, path, content_metadata=metadata(kind))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) in (2, 4):
        os.environ.setdefault("MASTER_PORT", "29517")
        tp, pp = sys.argv[2:] or ("1", "1")
        ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], tp, pp, str(rank)]) for rank in range(2 * int(tp) * int(pp))]
        sys.exit(any([rank.wait() for rank in ranks]))
    tp, pp, rank = map(int, sys.argv[2:])
    begin(rank, 2 * tp * pp, tp, pp)
    train_and_save(sys.argv[1])
