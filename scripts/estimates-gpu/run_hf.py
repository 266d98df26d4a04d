"""Peak device bytes of a decoder of Transformers: run_hf.py NAME RECORDS"""
import json
import sys

from device import used

before = used()
import torch
import transformers
from transformers import AutoModelForCausalLM

from checkset import DECODERS, config

name = sys.argv[1]
_, tokens, dtype = DECODERS[name]
torch.set_default_dtype(getattr(torch, dtype))
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config(name)).eval()
weights = sum({p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}.values())
# What making the weights took is given back: it is no part of running the model.
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
ids = torch.zeros(1, tokens - 8, dtype=torch.long, device="cuda")
with torch.inference_mode():
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
torch.cuda.synchronize()
record = {"model": name, "engine": "pytorch", "tokens": tokens, "dtype": dtype, "weights": weights,
          "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(), "device": used() - before,
          "version": torch.__version__, "transformers": transformers.__version__}
print(json.dumps(record), file=open(sys.argv[2], "a"))
