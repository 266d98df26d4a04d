#!/usr/bin/env python3
"""The rows that estimates of PyTorch programs are checked with: rows.py [second] > ROWS.json

Configurations as the models of that name have them, from public knowledge, some with fewer layers
(said in the name). None was used to find a rule.
"""
import json
import sys

LLAMA3B = dict(model_type="llama", hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
               num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072, tie_word_embeddings=True)
LLAMA7B = dict(model_type="llama", hidden_size=4096, intermediate_size=11008, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=32, vocab_size=32000, max_position_embeddings=4096)
TINYLLAMA = dict(model_type="llama", hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                 num_key_value_heads=4, vocab_size=32000, max_position_embeddings=2048)
SMOLLM = dict(model_type="llama", hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15,
              num_key_value_heads=5, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True)
QWEN25 = dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
              num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768, tie_word_embeddings=True)
QWEN25_15 = dict(model_type="qwen2", hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768, tie_word_embeddings=True)
QWEN25_3 = dict(model_type="qwen2", hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
                num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768, tie_word_embeddings=True)
QWEN3 = dict(model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=True)
QWEN3_4 = dict(model_type="qwen3", hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=True)
QWEN3_MOE = dict(model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=8,
                 num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
                 vocab_size=151936, max_position_embeddings=40960)
GEMMA2_9 = dict(model_type="gemma2", hidden_size=3584, intermediate_size=14336, num_hidden_layers=12, num_attention_heads=16,
                num_key_value_heads=8, head_dim=256, vocab_size=256000, max_position_embeddings=8192, sliding_window=4096)
GEMMA2_2 = dict(model_type="gemma2", hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
                num_key_value_heads=4, head_dim=256, vocab_size=256000, max_position_embeddings=8192, sliding_window=4096)
GEMMA3_4 = dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, num_attention_heads=8,
                num_key_value_heads=4, head_dim=256, vocab_size=262208, sliding_window=1024, max_position_embeddings=131072)
GEMMA3_1 = dict(model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
                num_key_value_heads=1, head_dim=256, vocab_size=262144, sliding_window=512, max_position_embeddings=32768)
GPT2 = dict(model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257)
GPT2_LARGE = dict(model_type="gpt2", n_embd=1280, n_layer=36, n_head=20, n_positions=1024, vocab_size=50257)
OPT = dict(model_type="opt", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096, vocab_size=50272,
           word_embed_proj_dim=512, max_position_embeddings=2048, do_layer_norm_before=False)
OPT_27 = dict(model_type="opt", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, ffn_dim=10240, vocab_size=50272,
              word_embed_proj_dim=2560, max_position_embeddings=2048)
PYTHIA = dict(model_type="gpt_neox", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
              vocab_size=50304, max_position_embeddings=2048)
PYTHIA_28 = dict(model_type="gpt_neox", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240,
                 vocab_size=50304, max_position_embeddings=2048)
GPT_NEO = dict(model_type="gpt_neo", hidden_size=2048, num_layers=24, num_heads=16, vocab_size=50257, max_position_embeddings=2048,
               attention_types=[[["global", "local"], 12]], window_size=256)
GPTJ = dict(model_type="gptj", n_embd=4096, n_layer=8, n_head=16, n_positions=2048, vocab_size=50400, rotary_dim=64)
BLOOM = dict(model_type="bloom", hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880)
MPT = dict(model_type="mpt", d_model=2048, n_heads=16, n_layers=24, max_seq_len=2048, vocab_size=50368)
FALCON = dict(model_type="falcon", hidden_size=4544, num_hidden_layers=8, num_attention_heads=71, vocab_size=65024,
              multi_query=True, parallel_attn=True, alibi=False, bias=False, max_position_embeddings=2048)
STABLELM = dict(model_type="stablelm", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=32,
                intermediate_size=5632, vocab_size=100352, max_position_embeddings=4096)
COHERE = dict(model_type="cohere", hidden_size=4096, intermediate_size=14336, num_hidden_layers=10, num_attention_heads=32,
              num_key_value_heads=8, vocab_size=256000, max_position_embeddings=8192)
PHI = dict(model_type="phi", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, intermediate_size=8192,
           vocab_size=51200, max_position_embeddings=2048)
PHI3 = dict(model_type="phi3", hidden_size=5120, num_hidden_layers=12, num_attention_heads=40, num_key_value_heads=10,
            intermediate_size=17920, vocab_size=32064, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2)
MISTRAL = dict(model_type="mistral", hidden_size=4096, intermediate_size=14336, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, vocab_size=32000, max_position_embeddings=32768, sliding_window=4096)
OLMO = dict(model_type="olmo", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=16, vocab_size=50304, max_position_embeddings=2048, tie_word_embeddings=True)
OLMOE = dict(model_type="olmoe", hidden_size=2048, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=16,
             num_key_value_heads=16, num_experts=64, num_experts_per_tok=8, vocab_size=50304, max_position_embeddings=4096)
STARCODER2 = dict(model_type="starcoder2", hidden_size=4608, intermediate_size=18432, num_hidden_layers=10, num_attention_heads=36,
                  num_key_value_heads=4, vocab_size=49152, max_position_embeddings=16384, sliding_window=4096)
STARCODER2_3 = dict(model_type="starcoder2", hidden_size=3072, intermediate_size=12288, num_hidden_layers=30,
                    num_attention_heads=24, num_key_value_heads=2, vocab_size=49152, max_position_embeddings=16384, sliding_window=4096)
GRANITE_MOE = dict(model_type="granitemoe", hidden_size=1536, intermediate_size=512, num_hidden_layers=24, num_attention_heads=24,
                   num_key_value_heads=8, num_local_experts=40, num_experts_per_tok=8, vocab_size=49155, max_position_embeddings=4096)
DEEPSEEK_V3 = dict(model_type="deepseek_v3", hidden_size=2048, intermediate_size=8192, moe_intermediate_size=1024, num_hidden_layers=6,
                   num_attention_heads=16, num_key_value_heads=16, n_shared_experts=1, n_routed_experts=32, q_lora_rank=768,
                   kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128, n_group=4, topk_group=2,
                   num_experts_per_tok=4, first_k_dense_replace=1, vocab_size=129280, max_position_embeddings=4096)
MAMBA = dict(model_type="mamba", hidden_size=1536, num_hidden_layers=12, vocab_size=50280, state_size=16)
GLM = dict(model_type="glm", hidden_size=4096, intermediate_size=13696, num_hidden_layers=10, num_attention_heads=32,
           num_key_value_heads=2, head_dim=128, vocab_size=151552, max_position_embeddings=8192, pad_token_id=0, eos_token_id=1)
SMOLLM3 = dict(model_type="smollm3", hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
               num_key_value_heads=4, vocab_size=128256, max_position_embeddings=65536, tie_word_embeddings=True, pad_token_id=0)


def infer(name, config, dtype, batch, tokens):
    return dict(name=name, kind="infer", config=config, dtype=dtype, batch=batch, tokens=tokens)


def train(name, config, precision, optimizer, batch, tokens, **more):
    return dict(name=name, kind="train", config=config, precision=precision, optimizer=optimizer, batch=batch, tokens=tokens, **more)


CHECK = [
    infer("llama3.2-3b", LLAMA3B, "bfloat16", 1, 8192),
    infer("llama2-7b, 16 layers", LLAMA7B, "float16", 2, 4096),
    infer("qwen2.5-0.5b", QWEN25, "float32", 1, 4096),
    infer("qwen2.5-3b", QWEN25_3, "bfloat16", 2, 4096),
    infer("qwen3-0.6b", QWEN3, "float16", 1, 16384),
    infer("qwen3-4b", QWEN3_4, "bfloat16", 4, 2048),
    infer("qwen3-moe, 8 layers", QWEN3_MOE, "bfloat16", 2, 2048),
    infer("gemma2-9b, 12 layers", GEMMA2_9, "bfloat16", 1, 6144),
    infer("gemma3-4b", GEMMA3_4, "bfloat16", 1, 8192),
    infer("gpt2-large", GPT2_LARGE, "float32", 4, 1024),
    infer("opt-2.7b", OPT_27, "float16", 2, 2048),
    infer("pythia-2.8b", PYTHIA_28, "float16", 1, 2048),
    infer("gpt-neo-1.3b", GPT_NEO, "float32", 1, 2048),
    infer("gpt-j-6b, 8 layers", GPTJ, "float16", 1, 2048),
    infer("bloom-560m", BLOOM, "float32", 4, 1024),
    infer("mpt-1b", MPT, "bfloat16", 1, 2048),
    infer("falcon-7b, 8 layers", FALCON, "bfloat16", 1, 2048),
    infer("stablelm-1.6b", STABLELM, "float16", 8, 1024),
    infer("command-r7b-like, 10 layers", COHERE, "bfloat16", 1, 8192),
    infer("phi-1.5", PHI, "float32", 2, 2048),
    infer("phi3-medium, 12 layers", PHI3, "bfloat16", 4, 1024),
    infer("mistral-7b, 16 layers", MISTRAL, "bfloat16", 1, 16384),
    infer("olmo-1b", OLMO, "float32", 1, 2048),
    infer("olmoe-1b-7b, 8 layers", OLMOE, "bfloat16", 1, 4096),
    infer("starcoder2-7b, 10 layers", STARCODER2, "float16", 1, 8192),
    infer("granite-3.1-3b-a800m, 24 layers", GRANITE_MOE, "bfloat16", 1, 4096),
    infer("deepseek-v3-like, 6 layers", DEEPSEEK_V3, "bfloat16", 1, 4096),
    infer("mamba-790m, 12 layers", MAMBA, "float32", 1, 512),
    infer("glm4-9b, 10 layers", GLM, "bfloat16", 8, 512),
    infer("smollm3-3b", SMOLLM3, "bfloat16", 1, 4096),
    train("gpt2 fp32", GPT2, "fp32", "adamw", 8, 1024),
    train("gpt2 amp fused", GPT2, "amp", "adamw-fused", 16, 512),
    train("opt-350m bf16", OPT, "bf16", "adamw", 4, 1024),
    train("opt-350m fp32 sgd", OPT, "fp32", "sgd", 2, 512),
    train("pythia-410m adafactor", PYTHIA, "bf16", "adafactor", 4, 1024),
    train("pythia-410m amp checkpointing", PYTHIA, "amp", "adamw", 4, 1024, checkpointing=True),
    train("qwen2.5-0.5b bf16", QWEN25, "bf16", "adamw", 2, 2048),
    train("qwen2.5-0.5b fp32", QWEN25, "fp32", "adamw", 2, 512),
    train("smollm2-360m amp", SMOLLM, "amp", "adamw", 4, 1024),
    train("smollm2-360m 8-bit", SMOLLM, "bf16", "adamw-8bit", 8, 512),
    train("bloom-560m bf16", BLOOM, "bf16", "adamw", 2, 1024),
    train("tinyllama fused checkpointing", TINYLLAMA, "bf16", "adamw-fused", 4, 2048, checkpointing=True),
    train("tinyllama sgd accumulated", TINYLLAMA, "bf16", "sgd", 8, 512, grad_accumulation=2),
    train("qwen3-0.6b checkpointing", QWEN3, "bf16", "adamw", 4, 1024, checkpointing=True),
    train("qwen3-0.6b fp32 adafactor", QWEN3, "fp32", "adafactor", 1, 512),
    train("phi-1.5 bf16", PHI, "bf16", "adamw", 2, 1024),
    train("llama3.2-3b LoRA checkpointing", LLAMA3B, "bf16", "adamw", 2, 1024, lora=16, checkpointing=True),
    train("mistral-7b, 16 layers, QLoRA", MISTRAL, "bf16", "adamw-8bit", 1, 1024, lora=16, base_dtype="nf4", checkpointing=True),
    train("llama3.2-3b QLoRA", LLAMA3B, "bf16", "adamw", 2, 512, lora=8, base_dtype="nf4"),
    train("stablelm-1.6b LoRA", STABLELM, "bf16", "adamw", 2, 1024, lora=32),
    train("olmo-1b int8 LoRA", OLMO, "bf16", "adamw", 2, 512, lora=16, base_dtype="int8"),
    train("gemma2-2b LoRA", GEMMA2_2, "bf16", "adamw", 1, 1024, lora=16),
    train("gemma3-1b amp", GEMMA3_1, "amp", "adamw", 2, 1024),
    train("starcoder2-3b sgd checkpointing", STARCODER2_3, "bf16", "sgd", 2, 1024, checkpointing=True),
    train("olmoe, 8 layers, sgd", OLMOE, "bf16", "sgd", 1, 1024),
    train("qwen2.5-1.5b 8-bit", QWEN25_15, "bf16", "adamw-8bit", 2, 1024),
]

# For rules that the rows above have shown: predicted after those had run, of other sizes and settings.
GPT_NEO_125 = dict(GPT_NEO, hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]])
OPT_125 = dict(OPT, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, word_embed_proj_dim=768,
               do_layer_norm_before=True)
PYTHIA_160 = dict(PYTHIA, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
SMOLLM_135 = dict(SMOLLM, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3)
OLMO2 = dict(model_type="olmo2", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=16, vocab_size=100352, max_position_embeddings=4096)
GRANITE = dict(model_type="granite", hidden_size=2048, intermediate_size=8192, num_hidden_layers=40, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=49155, max_position_embeddings=4096, tie_word_embeddings=True)
SECOND = [
    infer("qwen2.5-1.5b", QWEN25_15, "bfloat16", 4, 4096),
    infer("gemma2-2b", GEMMA2_2, "float16", 2, 4096),
    infer("tinyllama-1.1b", TINYLLAMA, "bfloat16", 8, 2048),
    infer("starcoder2-3b", STARCODER2_3, "bfloat16", 1, 16384),
    infer("granite-2b", GRANITE, "bfloat16", 3, 2048),
    train("gpt-neo-125m fp32", GPT_NEO_125, "fp32", "adamw", 4, 1024),
    train("gpt-neo-125m bf16 sgd", GPT_NEO_125, "bf16", "sgd", 8, 1024),
    train("opt-125m amp fused", OPT_125, "amp", "adamw-fused", 8, 1024),
    train("opt-125m adafactor", OPT_125, "fp32", "adafactor", 4, 512),
    train("pythia-160m 8-bit", PYTHIA_160, "bf16", "adamw-8bit", 8, 1024),
    train("pythia-160m fp32 checkpointing", PYTHIA_160, "fp32", "adamw", 4, 2048, checkpointing=True),
    train("smollm2-135m bf16", SMOLLM_135, "bf16", "adamw", 8, 1024),
    train("smollm2-135m amp accumulated", SMOLLM_135, "amp", "adamw", 2, 2048, grad_accumulation=4),
    train("smollm2-135m 8-bit checkpointing", SMOLLM_135, "bf16", "adamw-8bit", 16, 512, checkpointing=True),
    train("gpt2-large bf16 checkpointing", GPT2_LARGE, "bf16", "adamw", 4, 1024, checkpointing=True),
    train("gpt2-large LoRA", GPT2_LARGE, "bf16", "adamw", 2, 1024, lora=16),
    train("olmo2-1b sgd", OLMO2, "bf16", "sgd", 2, 1024),
    train("olmo2-1b QLoRA", OLMO2, "bf16", "adamw-8bit", 2, 1024, lora=64, base_dtype="nf4"),
    train("granite-2b LoRA checkpointing", GRANITE, "bf16", "adamw", 2, 2048, lora=16, checkpointing=True),
    train("qwen2.5-1.5b QLoRA", QWEN25_15, "bf16", "adamw", 4, 512, lora=16, base_dtype="nf4"),
    train("qwen2.5-1.5b amp adafactor", QWEN25_15, "amp", "adafactor", 1, 1024),
    train("qwen3-0.6b amp fused", QWEN3, "amp", "adamw-fused", 2, 1024),
    train("bloom-560m LoRA", BLOOM, "bf16", "adamw", 4, 512, lora=8),
    train("tinyllama int8 LoRA checkpointing", TINYLLAMA, "bf16", "adamw", 4, 1024, lora=16, base_dtype="int8", checkpointing=True),
    train("phi-1.5 fp32 sgd", PHI, "fp32", "sgd", 1, 2048),
    train("gemma3-1b LoRA", GEMMA3_1, "bf16", "adamw", 2, 1024, lora=16),
    train("stablelm-1.6b bf16 fused", STABLELM, "bf16", "adamw-fused", 2, 512),
]

# Adapters, predicted from files alone before the models' own programs were asked (no GPU).
OPT_13 = dict(OPT_27, hidden_size=2048, num_hidden_layers=24, ffn_dim=8192, word_embed_proj_dim=2048)
GPT2_MEDIUM = dict(GPT2, n_embd=1024, n_layer=24, n_head=16)
THIRD = [
    train("gemma3-1b QLoRA checkpointing", GEMMA3_1, "bf16", "adamw-8bit", 4, 512, lora=16, base_dtype="nf4", checkpointing=True),
    train("opt-1.3b QLoRA", OPT_13, "bf16", "adamw", 2, 512, lora=16, base_dtype="nf4"),
    train("opt-125m LoRA", OPT_125, "bf16", "adamw-fused", 8, 512, lora=32),
    train("gpt2-medium QLoRA", GPT2_MEDIUM, "bf16", "adamw-fused", 4, 512, lora=8, base_dtype="nf4"),
    train("tinyllama QLoRA checkpointing", TINYLLAMA, "bf16", "adamw-8bit", 2, 2048, lora=32, base_dtype="nf4", checkpointing=True),
    train("tinyllama int8 LoRA checkpointing, packed", TINYLLAMA, "bf16", "adamw", 2, 512, lora=16, base_dtype="int8", checkpointing=True),
    train("qwen2.5-0.5b LoRA", QWEN25, "bf16", "adamw-fused", 2, 1024, lora=64),
    train("smollm2-360m int8 LoRA", SMOLLM, "bf16", "adamw", 2, 512, lora=8, base_dtype="int8"),
    train("phi-1.5 LoRA checkpointing", PHI, "bf16", "adamw", 4, 512, lora=16, checkpointing=True),
    train("bloom-560m LoRA checkpointing", BLOOM, "bf16", "adamw", 4, 512, lora=16, checkpointing=True),
    train("olmo2-1b LoRA", OLMO2, "bf16", "adamw", 1, 1024, lora=16),
    train("gemma3-1b LoRA checkpointing", GEMMA3_1, "bf16", "adamw-fused", 2, 2048, lora=8, checkpointing=True),
]

if __name__ == "__main__":
    print(json.dumps({"second": SECOND, "third": THIRD}.get(sys.argv[-1], CHECK), indent=1))
