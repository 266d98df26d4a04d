//! Families of language models in GGUF files, by the name of their architecture.
//!
//! A header has widths, windows and states. Which layers use the window, and which are recurrent,
//! is for some families not in the file but in llama.cpp's code. Those facts (from its sources of
//! August 2026) are tables here. A file with a list of its own always wins over a table.

/// A family whose layers look back through a window, where the file has no list of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowedFamily {
    /// Its `general.architecture`.
    pub(crate) family: &'static str,
    /// The window in tokens that the engine has for it, used as `rule` says.
    pub(crate) default_window: Option<u64>,
    /// One layer of this many sees the whole context, the others see the window. With 0, every
    /// layer has the window.
    pub(crate) period: u64,
    /// Whether the layer that sees the whole context is the first of the period; otherwise it is
    /// the last.
    pub(crate) first_is_full: bool,
    pub(crate) rule: WindowRule,
}

/// Which window a family has, given the one that its file states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowRule {
    /// The stated window, else the default.
    StatedOrDefault,
    /// The default, whatever is stated; none if the file states 0.
    DefaultUnlessZero,
    /// The default if the file states a window, whatever its size; otherwise none.
    DefaultIfStated,
    /// As [`WindowRule::StatedOrDefault`] in models of this many layers; none in others.
    OnlyWithLayers(usize),
}

impl WindowedFamily {
    /// The window of a model of this family with `layers` layers, if it has one. `stated` is what
    /// the file says.
    pub(crate) fn window(&self, stated: Option<u64>, layers: usize) -> Option<u64> {
        let used = stated.filter(|&tokens| tokens > 0);
        match self.rule {
            WindowRule::OnlyWithLayers(with) if layers != with => None,
            WindowRule::StatedOrDefault | WindowRule::OnlyWithLayers(_) => {
                used.or(self.default_window)
            }
            WindowRule::DefaultUnlessZero => self.default_window.filter(|_| stated != Some(0)),
            WindowRule::DefaultIfStated => self.default_window.filter(|_| used.is_some()),
        }
    }

    /// Whether a layer has the window; `period` is the file's, or the family's.
    pub(crate) fn is_windowed(&self, layer: u64, period: u64) -> bool {
        match (layer.checked_rem(period), self.first_is_full) {
            (None, _) => true,
            (Some(place), true) => place != 0,
            (Some(place), false) => place < period - 1,
        }
    }
}

/// What most families have in common.
const USUAL: WindowedFamily = WindowedFamily {
    family: "",
    default_window: None,
    period: 4,
    first_is_full: false,
    rule: WindowRule::StatedOrDefault,
};

/// Families with windows.
pub(crate) const WINDOWED: [WindowedFamily; 17] = [
    WindowedFamily { family: "gemma2", default_window: Some(4096), period: 2, ..USUAL },
    WindowedFamily { family: "gemma3", period: 6, ..USUAL },
    WindowedFamily { family: "gemma3n", period: 5, ..USUAL },
    WindowedFamily { family: "cohere2", period: 4, ..USUAL },
    WindowedFamily { family: "cohere2moe", period: 4, first_is_full: true, ..USUAL },
    // It attends within chunks of this size.
    WindowedFamily {
        family: "llama4",
        default_window: Some(8192),
        period: 4,
        rule: WindowRule::DefaultUnlessZero,
        ..USUAL
    },
    WindowedFamily { family: "gpt-oss", period: 2, ..USUAL },
    // Only the model of 64 layers has windows.
    WindowedFamily {
        family: "exaone4",
        default_window: Some(4096),
        period: 4,
        rule: WindowRule::OnlyWithLayers(64),
        ..USUAL
    },
    WindowedFamily { family: "exaone-moe", default_window: Some(128), period: 4, ..USUAL },
    WindowedFamily { family: "olmo2", period: 4, ..USUAL },
    WindowedFamily {
        family: "smallthinker",
        default_window: Some(4096),
        period: 4,
        first_is_full: true,
        rule: WindowRule::DefaultIfStated,
    },
    WindowedFamily { family: "afmoe", period: 4, ..USUAL },
    WindowedFamily { family: "plamo3", period: 8, ..USUAL },
    WindowedFamily { family: "mellum", period: 4, ..USUAL },
    WindowedFamily { family: "laguna", period: 4, first_is_full: true, ..USUAL },
    // Every layer has the window.
    WindowedFamily { family: "lfm2", period: 0, ..USUAL },
    WindowedFamily { family: "muse-glimmer", period: 4, ..USUAL },
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
