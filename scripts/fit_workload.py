"""The programs that scripts/check-fit-gpu tries: language models of Transformers with random weights.

fit_workload.py CASE --batch N --context T runs a case on the GPU: three steps of training, or a
prompt and eight more tokens. Fails as PyTorch does when memory runs out.
"""
import argparse

GPT2 = dict(model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=2048, vocab_size=50257,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
GPT2_MEDIUM = {**GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16}
LLAMA = dict(model_type="llama", hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=16, vocab_size=32000, max_position_embeddings=131072, tie_word_embeddings=False)
TINYLLAMA = {**LLAMA, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
             "num_key_value_heads": 4}
QWEN = dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, vocab_size=151936, max_position_embeddings=131072, tie_word_embeddings=True)

# name: configuration, dtype of the weights, limit, what is varied and between which values, and the
# setting that is not varied. Limits are such that the largest is some 40 to 150 steps away.
CASES = {
    "gpt2-train-fp32": dict(config=GPT2, dtype="float32", train=True, limit="64GiB", vary="batch=1..512", context=512),
    "gpt2-medium-train-bf16": dict(config=GPT2_MEDIUM, dtype="bfloat16", train=True, limit="72GiB", vary="batch=1..512", context=512),
    "llama-train-bf16": dict(config=LLAMA, dtype="bfloat16", train=True, limit="24GiB", vary="context=64..65536", step=64, batch=4),
    "llama-train-checkpointing": dict(config=LLAMA, dtype="bfloat16", train=True, checkpointing=True, limit="24GiB",
                                      vary="batch=1..1024", context=512),
    "gpt2-fp16": dict(config=GPT2, dtype="float16", limit="6GiB", vary="batch=1..1024", context=1024),
    "tinyllama-fp16": dict(config=TINYLLAMA, dtype="float16", limit="8GiB", vary="context=512..131072", step=512, batch=1),
    "tinyllama-batch": dict(config=TINYLLAMA, dtype="float16", limit="12GiB", vary="batch=1..1024", context=1024),
    "qwen2-bf16": dict(config=QWEN, dtype="bfloat16", limit="6GiB", vary="context=512..131072", step=512, batch=1),
}


def config(case):
    """The configuration, for Transformers."""
    from transformers import AutoConfig

    settings = dict(case["config"])
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def model_of(case, device):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_default_dtype(getattr(torch, case["dtype"]))
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config(case))


def train(model, case, ids):
    import torch

    model.train()
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def infer(model, ids):
    import torch

    model.eval()
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)


def run(name, batch, context, device):
    """A case at a setting."""
    import torch

    case = CASES[name]
    model = model_of(case, device)
    if device == "cuda":
        # What making the weights took is given back: it is no part of running the model.
        torch.cuda.empty_cache()
    tokens = context if case.get("train") else context - 8
    ids = torch.randint(0, 1000, (batch, tokens), device=device)
    if case.get("train"):
        train(model, case, ids)
    else:
        infer(model, ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    wanted = parser.parse_args()
    import torch

    run(wanted.case, wanted.batch, wanted.context, wanted.device)
    if wanted.device == "cuda":
        torch.cuda.synchronize()
        print(f"allocated {torch.cuda.max_memory_allocated()} reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
