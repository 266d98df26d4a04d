//! Families of language models in GGUF files, by the name of their architecture.
//!
//! A header has widths, windows and states. Which layers use the window, and which are recurrent,
//! is for some families not in the file but in llama.cpp's code. Those facts (from its sources of
//! August 2026) are tables here. A file with a list of its own always wins over a table.

/// Which layers look back through a window, where the file has no list: every layer but the
/// last of a period (`false`) or the first of it (`true`).
pub(crate) const WINDOWED: [(&str, Option<u64>, u64, bool); 17] = [
    ("gemma2", Some(4096), 2, false),
    ("gemma3", None, 6, false),
    ("gemma3n", None, 5, false),
    ("cohere2", None, 4, false),
    ("cohere2moe", None, 4, true),
    ("llama4", Some(8192), 4, false),
    ("gpt-oss", None, 2, false),
    ("exaone4", Some(4096), 4, false),
    ("exaone-moe", Some(128), 4, false),
    ("olmo2", None, 4, false),
    ("smallthinker", None, 4, true),
    ("afmoe", None, 4, false),
    ("plamo3", None, 8, false),
    ("mellum", None, 4, false),
    ("laguna", None, 4, true),
    ("lfm2", None, 0, false),
    ("muse-glimmer", None, 4, false),
];

/// Families that keep a state in every layer and no cache.
pub(crate) const RECURRENT: [&str; 6] =
    ["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];

/// Families that are recurrent where a layer has no key-value heads.
pub(crate) const HYBRID: [&str; 10] = [
    "jamba",
    "plamo2",
    "granitehybrid",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
];

/// Families that are recurrent in all layers but every fourth, unless the file says otherwise.
pub(crate) const INTERVAL: [&str; 4] = ["qwen3next", "qwen35", "qwen35moe", "minimax-01"];

/// Families that see the whole input at once and keep nothing.
pub(crate) const ENCODERS: [&str; 15] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "dream",
    "llada",
    "llada-moe",
    "rnd1",
    "t5encoder",
    "wavtokenizer-dec",
];

/// Families that keep compressed blocks beside their cache, which are not counted.
pub(crate) const COMPRESSED_BLOCKS: [&str; 3] = ["deepseek4", "minimax-m3", "dots3note"];
