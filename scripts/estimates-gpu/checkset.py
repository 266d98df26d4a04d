"""Models that no overhead was fitted on, to check estimates with.

NETS are networks for images in plain PyTorch, run by PyTorch and (exported) by ONNX Runtime;
their walks are replayed through our own pool. DECODERS are language models of Transformers,
with random weights: a prompt at once, then eight tokens.
"""
DECODERS = {
    # name: (configuration, tokens, dtype)
    "gpt2-xl": (dict(model_type="gpt2", n_embd=1600, n_layer=48, n_head=25, n_positions=1024, vocab_size=50257), 1024, "float16"),
    "opt-1.3b": (dict(model_type="opt", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192,
                      vocab_size=50272, word_embed_proj_dim=2048, max_position_embeddings=2048), 2048, "float16"),
    "pythia-1.4b": (dict(model_type="gpt_neox", hidden_size=2048, num_hidden_layers=24, num_attention_heads=16,
                         intermediate_size=8192, vocab_size=50304, max_position_embeddings=2048), 2048, "float16"),
    "phi-2": (dict(model_type="phi", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240,
                   vocab_size=51200, max_position_embeddings=2048), 2048, "float16"),
    "gemma-2b": (dict(model_type="gemma", hidden_size=2048, num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=1,
                      head_dim=256, intermediate_size=16384, vocab_size=256000, max_position_embeddings=8192,
                      tie_word_embeddings=True), 4096, "bfloat16"),
    "qwen3-1.7b": (dict(model_type="qwen3", hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                        head_dim=128, intermediate_size=6144, vocab_size=151936, max_position_embeddings=40960,
                        tie_word_embeddings=True), 4096, "bfloat16"),
    "smollm2-1.7b": (dict(model_type="llama", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
                          num_key_value_heads=32, intermediate_size=8192, vocab_size=49152, max_position_embeddings=8192,
                          tie_word_embeddings=True), 8192, "bfloat16"),
    "stablelm-3b": (dict(model_type="stablelm", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=32, intermediate_size=6912, vocab_size=50304, max_position_embeddings=4096), 4096, "float16"),
    # Predicted after the others had run, and what they showed had been mended.
    "bloom-1b1": (dict(model_type="bloom", hidden_size=1536, n_layer=24, n_head=16, vocab_size=250880), 2048, "float16"),
    "falcon-1b": (dict(model_type="falcon", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, vocab_size=65024,
                       multi_query=True, parallel_attn=True, alibi=False, bias=False, max_position_embeddings=4096), 4096, "bfloat16"),
    "phi3-mini": (dict(model_type="phi3", hidden_size=3072, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
                       intermediate_size=8192, vocab_size=32064, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1,
                       eos_token_id=2), 4096, "bfloat16"),
}


def config(name):
    """A configuration of Transformers."""
    from transformers import AutoConfig

    settings = dict(DECODERS[name][0])
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def nets():
    """Name: (constructor, extents of the input)."""
    import torch
    from torch import nn

    def conv(a, b, k=3, s=1, groups=1, act=nn.ReLU):
        parts = [nn.Conv2d(a, b, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]
        return nn.Sequential(*parts, *([act()] if act else []))

    class Add(nn.Module):
        def __init__(self, body, way=None):
            super().__init__()
            self.body, self.way = body, way or nn.Identity()

        def forward(self, x):
            return self.body(x) + self.way(x)

    def basic(a, b, s):
        body = nn.Sequential(conv(a, b, 3, s), conv(b, b, act=None))
        return nn.Sequential(Add(body, None if a == b and s == 1 else conv(a, b, 1, s, act=None)), nn.ReLU())

    def resnet34():
        parts, at = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for width, count in [(64, 3), (128, 4), (256, 6), (512, 3)]:
            for n in range(count):
                parts.append(basic(at, width, 2 if n == 0 and width > 64 else 1))
                at = width
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))

    class Squeeze(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 4, 1), nn.ReLU(), nn.Conv2d(c // 4, c, 1), nn.Sigmoid())

        def forward(self, x):
            return x * self.gate(x)

    def inverted(a, b, s, grow, squeeze):
        inner = a * grow
        body = [conv(a, inner, 1, act=nn.Hardswish), conv(inner, inner, 5, s, inner, nn.Hardswish)]
        body += [Squeeze(inner)] if squeeze else []
        body = nn.Sequential(*body, conv(inner, b, 1, act=None))
        return Add(body) if a == b and s == 1 else body

    def mobilenet():
        parts, at = [conv(3, 16, 3, 2, act=nn.Hardswish)], 16
        for width, count, s, squeeze in [(24, 2, 2, False), (40, 3, 2, True), (80, 4, 2, False), (112, 2, 1, True), (160, 3, 2, True)]:
            for n in range(count):
                parts.append(inverted(at, width, s if n == 0 else 1, 6, squeeze))
                at = width
        return nn.Sequential(*parts, conv(at, 960, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000))

    class UNet(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256, 512)):
            super().__init__()
            two = lambda a, b: nn.Sequential(conv(a, b), conv(b, b))
            self.down = nn.ModuleList(two(a, b) for a, b in zip((3, *widths), widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
            self.join = nn.ModuleList(two(2 * a, a) for a in widths[:-1])
            self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(widths[0], 4, 1)

        def forward(self, x):
            kept = []
            for n, block in enumerate(self.down):
                x = block(x if n == 0 else self.pool(x))
                kept.append(x)
            for n in reversed(range(len(self.up))):
                x = self.join[n](torch.cat((kept[n], self.up[n](x)), 1))
            return self.last(x)

    class Attention(nn.Module):
        def __init__(self, c, heads):
            super().__init__()
            self.qkv, self.out, self.heads = nn.Linear(c, 3 * c), nn.Linear(c, c), heads

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            a = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
            return self.out(a.transpose(1, 2).flatten(2))

    class ViT(nn.Module):
        def __init__(self, c=384, layers=12, heads=6, patch=16, side=384, attention=Attention):
            super().__init__()
            self.patch = nn.Conv2d(3, c, patch, patch)
            self.place = nn.Parameter(torch.zeros(1, (side // patch) ** 2, c))
            block = lambda: nn.Sequential(
                Add(nn.Sequential(nn.LayerNorm(c), attention(c, heads))),
                Add(nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))))
            self.blocks = nn.Sequential(*(block() for _ in range(layers)), nn.LayerNorm(c))
            self.head = nn.Linear(c, 1000)

        def forward(self, x):
            return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.place).mean(1))

    def autoencoder():
        widths = [3, 64, 128, 256, 256]
        down = [conv(a, b, 5, 2, act=nn.GELU) for a, b in zip(widths, widths[1:])]
        up = []
        for a, b in zip(widths[::-1], widths[-2::-1]):
            up += [nn.Upsample(scale_factor=2), conv(a, b, act=nn.GELU if b != 3 else None)]
        return nn.Sequential(*down, *up)

    class Turn(nn.Module):
        """Channels to the end, or back."""

        def __init__(self, *axes):
            super().__init__()
            self.axes = axes

        def forward(self, x):
            return x.permute(self.axes)

    class Scale(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.by = nn.Parameter(torch.full((c, 1, 1), 1e-6))

        def forward(self, x):
            return x * self.by

    def convnext():
        last, first = Turn(0, 2, 3, 1), Turn(0, 3, 1, 2)
        norm = lambda c: nn.Sequential(last, nn.LayerNorm(c), first)
        block = lambda c: Add(nn.Sequential(
            nn.Conv2d(c, c, 7, 1, 3, groups=c), last, nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c),
            first, Scale(c)))
        parts, at = [nn.Conv2d(3, 96, 4, 4), norm(96)], 96
        for width, count in [(96, 3), (192, 3), (384, 9), (768, 3)]:
            parts += [norm(at), nn.Conv2d(at, width, 2, 2)] if width != at else []
            parts += [block(width) for _ in range(count)]
            at = width
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(at), nn.Linear(at, 1000))

    def efficientnet():
        def mbconv(a, b, k, s, grow):
            inner = a * grow
            body = [conv(a, inner, 1, act=nn.SiLU)] if grow > 1 else []
            body += [conv(inner, inner, k, s, inner, nn.SiLU), Squeeze(inner), conv(inner, b, 1, act=None)]
            return Add(nn.Sequential(*body)) if a == b and s == 1 else nn.Sequential(*body)

        parts, at = [conv(3, 40, 3, 2, act=nn.SiLU)], 40
        for width, count, k, s, grow in [(24, 2, 3, 1, 1), (32, 3, 3, 2, 6), (48, 3, 5, 2, 6), (96, 5, 3, 2, 6), (136, 5, 5, 1, 6),
                                         (232, 6, 5, 2, 6), (384, 2, 3, 1, 6)]:
            for n in range(count):
                parts.append(mbconv(at, width, k, s if n == 0 else 1, grow))
                at = width
        return nn.Sequential(*parts, conv(at, 1536, 1, act=nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1536, 1000))

    class Segment(nn.Module):
        """A pyramid of dilated filters over a residual network, brought back to full size."""

        def __init__(self):
            super().__init__()
            widths = [64, 128, 256, 512]
            self.stem = conv(3, 64, 7, 2)
            self.stages = nn.Sequential(*(nn.Sequential(basic(a, b, 2 if n < 3 else 1), basic(b, b, 1))
                                          for n, (a, b) in enumerate(zip([64, *widths], widths))))
            self.wide = nn.ModuleList(
                nn.Sequential(nn.Conv2d(512, 256, 3, 1, d, d, bias=False), nn.BatchNorm2d(256), nn.ReLU()) for d in (6, 12, 18))
            self.one, self.join, self.last = conv(512, 256, 1), conv(1024, 256, 1), nn.Conv2d(256, 21, 1)

        def forward(self, x):
            y = self.stages(self.stem(x))
            y = self.join(torch.cat([self.one(y), *(part(y) for part in self.wide)], 1))
            return nn.functional.interpolate(self.last(y), size=x.shape[-2:], mode="bilinear", align_corners=False)

    def superres():
        plain = lambda a, b: nn.Conv2d(a, b, 3, 1, 1)
        block = lambda: Add(nn.Sequential(plain(64, 64), nn.ReLU(), plain(64, 64)))
        body = Add(nn.Sequential(*(block() for _ in range(16)), plain(64, 64)))
        up = [plain(64, 256), nn.PixelShuffle(2)]
        return nn.Sequential(plain(3, 64), body, *up, *[plain(64, 256), nn.PixelShuffle(2)], plain(64, 3))

    class Fused(Attention):
        """By the one operator that PyTorch has for it."""

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return {
        "resnet34": (resnet34, [8, 3, 224, 224]),
        "mobilenet": (mobilenet, [4, 3, 320, 320]),
        "unet": (UNet, [1, 3, 512, 512]),
        "vit-small": (ViT, [4, 3, 384, 384]),
        "autoencoder": (autoencoder, [2, 3, 512, 512]),
        "convnext": (convnext, [16, 3, 224, 224]),
        "efficientnet": (efficientnet, [8, 3, 300, 300]),
        "segment": (Segment, [4, 3, 512, 512]),
        "superres": (superres, [1, 3, 320, 240]),
        "vit-deep": (lambda: ViT(512, 24, 8, 16, 224, Fused), [16, 3, 224, 224]),
    }
