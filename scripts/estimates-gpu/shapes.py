"""Public shapes: hidden, inner, layers, vocabulary, heads, kv heads, head width, tied, qkv bias."""

SHAPES = {
    "tinyllama-1.1b": (2048, 5632, 22, 32000, 32, 4, 64, False, False),
    "qwen2.5-0.5b": (896, 4864, 24, 151936, 14, 2, 64, True, True),
    "llama3.2-1b": (2048, 8192, 16, 128256, 32, 8, 64, True, False),
    "llama3.2-3b": (3072, 8192, 28, 128256, 24, 8, 128, True, False),
    "qwen2.5-3b": (2048, 11008, 36, 151936, 16, 2, 128, True, True),
    "mistral-7b": (4096, 14336, 32, 32000, 32, 8, 128, False, False),
    "llama2-7b": (4096, 11008, 32, 32000, 32, 32, 128, False, False),
    "llama3-8b": (4096, 14336, 32, 128256, 32, 8, 128, False, False),
    "llama2-13b": (5120, 13824, 40, 32000, 40, 40, 128, False, False),
}


def config(shape):
    """The same as config.json has it."""
    h, inner, layers, vocab, heads, kv, width, tied, bias = shape
    kind = "qwen2" if bias else "llama"
    return {
        "model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], "num_hidden_layers": layers, "hidden_size": h,
        "vocab_size": vocab, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": width,
        "intermediate_size": inner, "tie_word_embeddings": tied, "max_position_embeddings": 32768,
    }
