#!/usr/bin/env python3
"""The rows by which the two ways of estimating are compared without a GPU: grid.py > GRID.json

`plimsoll estimate --engine pytorch` works from files alone; `--exact` runs the model's own program on
tensors without data, and agreed with an H200. For each family there are other sizes, types, batches and
contexts than in rows.py, and for training every optimizer, precision and kind of adapter. Models have few
layers, so that all rows take some 20 minutes.
"""
import json

import rows as known


def small(config, **other):
    """A configuration with fewer layers or another width."""
    return {**config, **other}


GEMMA = dict(model_type="gemma", hidden_size=2048, intermediate_size=16384, num_hidden_layers=8, num_attention_heads=8,
             num_key_value_heads=1, head_dim=256, vocab_size=256000, max_position_embeddings=8192)
MIXTRAL = dict(model_type="mixtral", hidden_size=2048, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16,
               num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, vocab_size=32000, max_position_embeddings=8192)
QWEN2_MOE = dict(model_type="qwen2_moe", hidden_size=1024, intermediate_size=2816, moe_intermediate_size=704,
                 shared_expert_intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16,
                 num_experts=32, num_experts_per_tok=4, vocab_size=151936, max_position_embeddings=8192, sliding_window=32768,
                 use_sliding_window=False)
DEEPSEEK_V2 = dict(model_type="deepseek_v2", hidden_size=1024, intermediate_size=4096, moe_intermediate_size=704, num_hidden_layers=6,
                   num_attention_heads=8, num_key_value_heads=8, n_shared_experts=2, n_routed_experts=16, q_lora_rank=None,
                   kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128, num_experts_per_tok=4,
                   first_k_dense_replace=1, vocab_size=102400, max_position_embeddings=8192)
COHERE2 = dict(model_type="cohere2", hidden_size=2048, intermediate_size=7168, num_hidden_layers=8, num_attention_heads=16,
               num_key_value_heads=4, vocab_size=128000, sliding_window=2048, max_position_embeddings=8192)
BIGCODE = dict(model_type="gpt_bigcode", n_embd=1024, n_layer=10, n_head=16, n_positions=4096, vocab_size=49152, multi_query=True)

# Of each family two sizes: the first in most rows, the second in one of running and one of training.
FAMILIES = {
    "bloom": (small(known.BLOOM, hidden_size=512, n_layer=10, n_head=8), small(known.BLOOM, hidden_size=1536, n_layer=6)),
    "cohere": (small(known.COHERE, hidden_size=2048, intermediate_size=7168, num_hidden_layers=6, num_attention_heads=16,
                     num_key_value_heads=4), small(known.COHERE, num_hidden_layers=4, vocab_size=64000)),
    "cohere2": (COHERE2, small(COHERE2, hidden_size=3072, num_attention_heads=24, num_hidden_layers=4)),
    "deepseek_v2": (DEEPSEEK_V2, small(DEEPSEEK_V2, hidden_size=2048, num_hidden_layers=4, num_attention_heads=16)),
    "deepseek_v3": (small(known.DEEPSEEK_V3, hidden_size=1024, num_hidden_layers=5, num_attention_heads=8, num_key_value_heads=8),
                    small(known.DEEPSEEK_V3, num_hidden_layers=4, vocab_size=32000)),
    "falcon": (small(known.FALCON, hidden_size=2048, num_attention_heads=32, num_hidden_layers=8),
               small(known.FALCON, hidden_size=1024, num_attention_heads=16, num_hidden_layers=12)),
    "gemma": (GEMMA, small(GEMMA, hidden_size=1024, intermediate_size=4096, num_attention_heads=4, vocab_size=128000)),
    "gemma2": (small(known.GEMMA2_2, num_hidden_layers=8), small(known.GEMMA2_2, hidden_size=1152, num_hidden_layers=12, vocab_size=64000)),
    "gemma3_text": (small(known.GEMMA3_1, num_hidden_layers=12), small(known.GEMMA3_4, num_hidden_layers=6)),
    "glm": (small(known.GLM, hidden_size=2048, intermediate_size=6848, num_attention_heads=16, num_hidden_layers=8),
            small(known.GLM, num_hidden_layers=4)),
    "gpt2": (small(known.GPT2, n_layer=8), small(known.GPT2_LARGE, n_layer=12)),
    "gpt_bigcode": (BIGCODE, small(BIGCODE, n_embd=2048, n_head=32, n_layer=6)),
    "gpt_neo": (small(known.GPT_NEO_125, num_layers=8, attention_types=[[["global", "local"], 4]]),
                small(known.GPT_NEO, num_layers=6, attention_types=[[["global", "local"], 3]])),
    "gpt_neox": (small(known.PYTHIA, num_hidden_layers=8), small(known.PYTHIA_28, num_hidden_layers=6)),
    "gptj": (small(known.GPTJ, n_embd=2048, n_head=16, n_layer=6), small(known.GPTJ, n_layer=3)),
    "granite": (small(known.GRANITE, num_hidden_layers=8), small(known.GRANITE, hidden_size=1024, num_attention_heads=16)),
    "granitemoe": (small(known.GRANITE_MOE, num_hidden_layers=8), small(known.GRANITE_MOE, hidden_size=1024, num_attention_heads=16, num_hidden_layers=12)),
    "llama": (small(known.SMOLLM, num_hidden_layers=12), small(known.LLAMA3B, num_hidden_layers=6)),
    "mamba": (small(known.MAMBA, hidden_size=768, num_hidden_layers=6), small(known.MAMBA, num_hidden_layers=4)),
    "mistral": (small(known.MISTRAL, hidden_size=2048, intermediate_size=7168, num_attention_heads=16, num_key_value_heads=4, num_hidden_layers=8),
                small(known.MISTRAL, num_hidden_layers=4)),
    "mixtral": (MIXTRAL, small(MIXTRAL, hidden_size=1024, num_attention_heads=8, num_hidden_layers=8)),
    "mpt": (small(known.MPT, d_model=1024, n_layers=8), small(known.MPT, n_layers=6)),
    "olmo": (small(known.OLMO, num_hidden_layers=8), small(known.OLMO, hidden_size=1024, num_attention_heads=8, num_key_value_heads=8)),
    "olmo2": (small(known.OLMO2, num_hidden_layers=8), small(known.OLMO2, hidden_size=1024, num_attention_heads=8, num_key_value_heads=8)),
    "olmoe": (small(known.OLMOE, hidden_size=1024, num_hidden_layers=8), small(known.OLMOE, num_hidden_layers=4)),
    "opt": (small(known.OPT_125, num_hidden_layers=8), small(known.OPT, num_hidden_layers=12)),
    "phi": (small(known.PHI, hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=12), small(known.PHI, num_hidden_layers=8)),
    "phi3": (small(known.PHI3, hidden_size=2560, num_attention_heads=20, num_key_value_heads=5, intermediate_size=8960, num_hidden_layers=8),
             small(known.PHI3, num_hidden_layers=4)),
    "qwen2": (small(known.QWEN25, num_hidden_layers=12), small(known.QWEN25_15, num_hidden_layers=8)),
    "qwen2_moe": (QWEN2_MOE, small(QWEN2_MOE, hidden_size=2048, num_hidden_layers=4)),
    "qwen3": (small(known.QWEN3, num_hidden_layers=12), small(known.QWEN3_4, num_hidden_layers=6)),
    "qwen3_moe": (small(known.QWEN3_MOE, hidden_size=1024, num_hidden_layers=6, num_experts=32, num_attention_heads=16),
                  small(known.QWEN3_MOE, num_hidden_layers=4, num_experts=64)),
    "smollm3": (small(known.SMOLLM3, hidden_size=1024, intermediate_size=4096, num_hidden_layers=12), small(known.SMOLLM3, num_hidden_layers=6)),
    "stablelm": (small(known.STABLELM, num_hidden_layers=8), small(known.STABLELM, hidden_size=1024, num_attention_heads=16, num_key_value_heads=16)),
    "starcoder2": (small(known.STARCODER2_3, num_hidden_layers=8), small(known.STARCODER2, num_hidden_layers=4)),
}

# What is trained with gradients for experts is slow to follow; one row is enough to say that it is unchecked or not.
EXPERTS = {"deepseek_v2", "deepseek_v3", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"}


def running(family, first, second):
    long = 2048 if family in ("gpt_neo", "bloom", "mpt", "gptj", "falcon", "opt", "phi", "mamba", "olmo", "gpt_neox") else 8192
    if family == "gpt2":
        long = 1024
    yield first, dict(dtype="bfloat16", batch=4, tokens=long)
    yield first, dict(dtype="float16", batch=16, tokens=512)
    yield first, dict(dtype="float32", batch=4, tokens=1024)
    yield second, dict(dtype="bfloat16", batch=1, tokens=long)
    yield second, dict(dtype="float16", batch=8, tokens=1000)


def training(family, first, second):
    if family == "mamba":
        return  # from files alone it is not estimated
    yield first, dict(precision="bf16", optimizer="adamw", batch=8, tokens=1024)
    yield first, dict(precision="fp32", optimizer="sgd", batch=4, tokens=1024)
    yield first, dict(precision="amp", optimizer="adamw-fused", batch=16, tokens=512)
    yield second, dict(precision="bf16", optimizer="adamw-8bit", batch=16, tokens=1024, checkpointing=True)
    if family in EXPERTS:
        return
    yield first, dict(precision="bf16", optimizer="adafactor", batch=8, tokens=1024)
    yield first, dict(precision="amp", optimizer="adamw", batch=8, tokens=1024, checkpointing=True)
    yield second, dict(precision="bf16", optimizer="sgd", batch=4, tokens=1024, grad_accumulation=2)
    yield first, dict(precision="bf16", optimizer="adamw", batch=4, tokens=1024, lora=16)
    yield second, dict(precision="bf16", optimizer="adamw", batch=16, tokens=1024, lora=8, checkpointing=True)
    yield second, dict(precision="bf16", optimizer="adamw-8bit", batch=4, tokens=512, lora=16, base_dtype="nf4")
    yield first, dict(precision="bf16", optimizer="adamw", batch=8, tokens=1024, lora=16, base_dtype="nf4", checkpointing=True)
    yield first, dict(precision="bf16", optimizer="adamw", batch=4, tokens=512, lora=16, base_dtype="int8")


# Families whose adapters are trained most; with few layers, as there are many settings.
ADAPTED = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "opt", "olmo2", "granite", "smollm3",
           "gpt_neox", "phi", "starcoder2", "stablelm", "bloom", "gemma", "olmo", "glm", "falcon", "cohere")


def few_layers(config):
    layers = next(key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in config)
    return small(config, **{layers: min(config[layers], 5)})


def adapting(family, first, second):
    """Adapters with more ranks, lengths and optimizers, and autocast, as Transformers' Trainer has it."""
    first, second = few_layers(first), few_layers(second)
    yield second, dict(precision="bf16", optimizer="adamw-fused", batch=2, tokens=1024, lora=64)
    yield first, dict(precision="bf16", optimizer="adamw", batch=2, tokens=1024, lora=8, base_dtype="nf4")
    yield first, dict(precision="bf16", optimizer="adamw-8bit", batch=6, tokens=512, lora=32, checkpointing=True)
    yield second, dict(precision="bf16", optimizer="adamw-fused", batch=4, tokens=1024, lora=64, base_dtype="nf4", checkpointing=True)
    yield first, dict(precision="amp", optimizer="adamw", batch=4, tokens=512, lora=16, base_dtype="nf4")
    yield first, dict(precision="bf16", optimizer="adamw", batch=3, tokens=768, lora=16)


def adapting_8_bits(family, first, second):
    first, second = few_layers(first), few_layers(second)
    yield second, dict(precision="bf16", optimizer="adamw-8bit", batch=2, tokens=1024, lora=8, base_dtype="int8", checkpointing=True)
    yield first, dict(precision="bf16", optimizer="adamw", batch=3, tokens=768, lora=32, base_dtype="int8")
    yield first, dict(precision="bf16", optimizer="adamw", batch=4, tokens=512, lora=16, base_dtype="int8", checkpointing=True)


def in_columns(kind, made, families, name=None):
    """Family by family within each setting, so that a part of them has all families."""
    columns = {family: list(made(family, *FAMILIES[family])) for family in families}
    rows = []
    for place in range(max(map(len, columns.values()))):
        for family, column in columns.items():
            if place < len(column):
                config, how = column[place]
                rows.append(dict(name=f"{name or kind} {family} {place}", kind=kind, config=config, **how))
    return rows


def grid():
    """All rows."""
    return [*in_columns("infer", running, FAMILIES), *in_columns("train", training, FAMILIES),
            *in_columns("train", adapting, ADAPTED, "adapt"), *in_columns("train", adapting_8_bits, ADAPTED[:8], "adapt int8")]


if __name__ == "__main__":
    print(json.dumps(grid()))
