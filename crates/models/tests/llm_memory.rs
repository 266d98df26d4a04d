//! The estimate against what llama.cpp printed: logs kept outside the project, where they exist.
//!
//! Rows whose model and type were named must agree: the cache within 0.1 %, the weights within
//! 0.5 %, the compute buffer within 2 %. The exceptions are named here with their reasons.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of a test, which may fail loudly"
)]

use std::path::Path;

use plimsoll_models::{Biases, InferenceMemoryEstimate, Mlp, ModelShape};

const LOGS: &str = "../../../shared/llm-memory/llamacpp_buffers.tsv";

struct Row<'a> {
    columns: Vec<(&'a str, &'a str)>,
}

impl<'a> Row<'a> {
    fn text(&self, name: &str) -> &'a str {
        self.columns.iter().find(|(column, _)| *column == name).map_or("", |(_, text)| text)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("{name} of {}", self.text("model")))
    }

    /// What the log said, in MiB; nothing where it did not say.
    fn logged(&self, name: &str) -> Option<f64> {
        self.text(name).parse().ok()
    }

    fn shape(&self) -> ModelShape {
        let shape = ModelShape::new(
            self.number("n_embd"),
            self.number("n_ff"),
            self.number("n_layer"),
            self.number("n_vocab"),
            self.number("n_head"),
        )
        .with_kv_heads(self.number("n_head_kv"))
        .with_head_dim(self.number("head_dim"))
        .with_context(self.number("n_ctx"))
        .with_micro_batch(self.number("n_ubatch"))
        .with_flash_attention(self.text("flash_attn") == "1")
        .with_cache_types(
            self.text("type_k").parse().unwrap(),
            self.text("type_v").parse().unwrap(),
        );
        let shape = match self.text("ftype").parse() {
            Ok(kind) => shape.with_weights(kind),
            Err(_) => shape,
        };
        family(self.text("model"), shape)
    }

    /// Why the compute buffer of this row is not the whole story, where it is not.
    fn compute_exception(&self) -> Option<&'static str> {
        match self.text("backend") {
            b if b.starts_with("CANN") => Some("the backend keeps a copy of the output matrix"),
            b if b.contains("0 layers offloaded") => Some("the buffer is split with the host"),
            _ => None,
        }
    }
}

/// What the family of a model adds to the numbers of its row.
fn family(model: &str, shape: ModelShape) -> ModelShape {
    match model {
        m if m.starts_with("pythia") => shape
            .with_mlp(Mlp::Plain)
            .with_biases(Biases::All)
            .with_fused_qkv(true)
            .with_parallel_residual(true),
        m if m.starts_with("qwen2") => shape.with_biases(Biases::Attention),
        m if m.starts_with("gemma") => shape.with_tied_embeddings(true),
        _ => shape,
    }
}

fn off(estimate: f64, logged: f64) -> f64 {
    100.0 * (estimate - logged) / logged
}

fn check(row: &Row<'_>, estimate: &InferenceMemoryEstimate) -> Vec<String> {
    let terms = [
        ("weights", "log_weights_MiB", estimate.model_mb(), 0.5),
        ("cache", "log_kv_MiB", estimate.kv_cache_mb(), 0.1),
        ("compute", "log_compute_MiB", estimate.activation_mb(), 2.0),
        ("host", "log_host_compute_MiB", estimate.host_compute_bytes.as_mib(), 2.0),
    ];
    let named = row.text("identity").starts_with("stated");
    let type_named = row.text("ftype").parse::<plimsoll_models::WeightType>().is_ok();
    let mut failures = Vec::new();
    let mut line = format!("{:32} {:7}", row.text("model"), row.text("ftype"));
    for (term, column, value, tolerance) in terms {
        let Some(logged) = row.logged(column) else { continue };
        if term == "weights" && !type_named {
            continue;
        }
        let off = off(value, logged);
        line += &format!(" {term} {value:.2}/{logged:.2} ({off:+.3} %)");
        let excused = matches!(term, "compute" | "host") && row.compute_exception().is_some();
        if named && off.abs() > tolerance && !excused {
            failures.push(format!("{}: {term} {value:.2} for {logged:.2}", row.text("model")));
        }
    }
    match row.compute_exception() {
        Some(reason) => println!("{line} [{reason}]"),
        None => println!("{line}"),
    }
    failures
}

#[test]
fn the_estimate_agrees_with_the_logs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LOGS);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: no logs at {LOGS}");
        return;
    };
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let mut failures = Vec::new();
    let mut rows = 0;
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let row = Row { columns: header.iter().copied().zip(line.split('\t')).collect() };
        failures.extend(check(&row, &row.shape().estimate().unwrap()));
        rows += 1;
    }
    assert!(rows > 0, "the logs hold no rows");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
