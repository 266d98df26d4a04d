//! `plimsoll estimate llm` as a user meets it, and against what an engine logged.

mod common;

use std::fs;

use common::{Result, complaint, json, run, shared, text};
use serde_json::Value;

const MISTRAL: &str = "estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \
                       --heads 32 --kv-heads 8 --context 4096";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn gib(value: &Value) -> String {
    format!("{:.2}", value.as_f64().unwrap_or(f64::NAN) / f64::from(1 << 30))
}

#[test]
fn mistral_7b_comes_out_as_published() -> Result {
    for (flags, expected) in [
        ("", ["13.49", "0.50", "0.29", "14.28"]),
        ("--dtype f32", ["26.98", "1.00", "0.29", "28.27"]),
        ("--dtype fp32 --kv_dtype f16", ["26.98", "0.50", "0.29", "27.77"]),
    ] {
        let line = format!("{MISTRAL} {flags}");
        let answer = json(&words(&line), 0)?;
        let keys = ["weights_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes"];
        assert_eq!(keys.map(|key| gib(&answer[key])), expected, "{flags}");
        assert_eq!(answer["overhead_bytes"], Value::Null);
        assert_eq!(answer["fits"], Value::Null);
        assert!(answer["details"]["weights"]["mlp_bytes"].as_u64() > Some(0));
        assert!(answer["details"]["host_compute_bytes"].as_u64() > Some(0));
        let page = text(&run(&words(&line))?.stdout);
        for figure in expected {
            assert!(page.contains(&format!("{figure} GiB")), "{figure}: {page}");
        }
    }
    Ok(())
}

#[test]
fn the_limit_has_three_spellings_and_decides_the_exit_code() -> Result {
    for (flags, code) in [
        ("--limit 15GiB", 0),
        ("--gpu-mem-limit 15GiB", 0),
        ("--gpu_mem_limit_gb 15", 0),
        ("--gpu-mem-limit-gb 14.5", 0),
        ("--limit 15GB", 1),
        ("--gpu-mem-limit-gb 14", 1),
    ] {
        let line = format!("{MISTRAL} {flags}");
        assert_eq!(json(&words(&line), code)?["fits"], code == 0, "{flags}");
    }
    Ok(())
}

/// As the file form has it: what fits only if the estimate is right within a tenth is tight.
#[test]
fn tight_is_said_and_several_types_are_advised() -> Result {
    let at = |limit: &str, code| json(&words(&format!("{MISTRAL} --limit {limit}")), code);
    for (limit, verdict, code) in
        [("16GiB", "fits", 0), ("15GiB", "tight", 0), ("14GiB", "does_not_fit", 1)]
    {
        let answer = at(limit, code)?;
        assert_eq!((&answer["verdict"], &answer["fits"]), (&verdict.into(), &(code == 0).into()));
    }
    let page = run(&words(&format!("{MISTRAL} --limit 15GiB")))?;
    assert!(text(&page.stdout).contains("tight in 15.00 GiB"), "{}", text(&page.stdout));
    let answer = at("8GiB", 1)?;
    let advice = answer["advice"].as_array().ok_or("no advice")?;
    let types: Vec<&str> = advice
        .iter()
        .filter_map(|advice| advice["change"].as_str()?.strip_suffix(" weights"))
        .collect();
    assert_eq!(types, ["q8_0", "q6_k", "q5_k_m"], "{answer:#}");
    Ok(())
}

#[test]
fn advice_really_fits() -> Result {
    for (flags, at_least) in [
        ("--limit 14.2GiB", 2),
        ("--limit 8GiB", 1),
        ("--limit 8GiB --context 131072", 1),
        ("--limit 4GiB --context 131072", 1),
        ("--limit 20GiB --dtype f32", 1),
        ("--limit 14.2GiB --biases=attention --mlp plain --experts 8:2 --head-dim 64", 1),
    ] {
        let line = format!("{MISTRAL} {flags}").replace("--context 4096 ", " ");
        let line = if line.contains("--context") { line } else { format!("{line} --context 4096") };
        let answer = json(&words(&line), 1)?;
        let advice = answer["advice"].as_array().ok_or("no advice")?;
        assert!(advice.len() >= at_least, "{flags}: {advice:?}");
        for advice in advice {
            let command = advice["command"].as_str().ok_or("no command")?;
            let again = json(&words(command.strip_prefix("plimsoll ").ok_or("not ours")?), 0)?;
            assert_eq!(again["total_bytes"], advice["total_bytes"], "{command}");
            assert_eq!(again["fits"], true, "{command}");
        }
    }
    let none = json(&words(&format!("{MISTRAL} --limit 1GiB")), 1)?;
    assert_eq!(none["advice"].as_array().map(Vec::len), Some(0));
    let page = text(&run(&words(&format!("{MISTRAL} --limit 8GiB")))?.stdout);
    assert!(page.contains("does not fit into 8.00 GiB") && page.contains("--dtype q"), "{page}");
    Ok(())
}

#[test]
fn bad_input_names_the_flag() -> Result {
    for (flags, flag) in [
        ("--dtype decimal", "--dtype"),
        ("--kv-dtype 16", "--kv-dtype"),
        ("--mlp none", "--mlp"),
        ("--ubatch 0", "--ubatch"),
        ("--experts 2:8", "--experts"),
        ("--experts many", "--experts"),
        ("--limit 0", "--gpu-mem-limit"),
        ("--limit 8GiB --gpu-mem-limit-gb 8", "--gpu-mem-limit-gb"),
        ("--head-dim 0", "--head-dim"),
        ("--biases=some", "--biases"),
    ] {
        let message = complaint(&words(&format!("{MISTRAL} {flags}")))?;
        assert!(message.contains(flag), "{flags}: {message}");
    }
    let message = complaint(&words(&MISTRAL.replace("--kv-heads 8", "--kv-heads 5")))?;
    assert!(message.starts_with("error: --kv-heads is 5 with heads = 32; "), "{message}");
    let message = complaint(&words(&MISTRAL.replace("--layers 32", "")))?;
    assert!(message.contains("--layers"), "{message}");
    complaint(&["estimate"])?;
    complaint(&["estimate", "nonsense"])?;
    Ok(())
}

/// A row of the logs, by its columns.
struct Row<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Row<'a> {
    fn text(&self, name: &str) -> &'a str {
        self.0.iter().find(|(column, _)| *column == name).map_or("", |(_, text)| text)
    }

    /// The command line for it. What its family adds stands in no column.
    fn line(&self) -> String {
        let mut line = "estimate llm".to_string();
        for (flag, column) in [
            ("hidden", "n_embd"),
            ("intermediate", "n_ff"),
            ("layers", "n_layer"),
            ("vocab", "n_vocab"),
            ("heads", "n_head"),
            ("kv-heads", "n_head_kv"),
            ("head-dim", "head_dim"),
            ("context", "n_ctx"),
            ("ubatch", "n_ubatch"),
            ("kv-dtype", "type_k"),
        ] {
            line += &format!(" --{flag} {}", self.text(column));
        }
        if self.is_typed() {
            line += &format!(" --dtype {}", self.text("ftype"));
        }
        if self.text("flash_attn") == "1" {
            line += " --flash-attn";
        }
        line + match self.text("model") {
            m if m.starts_with("pythia") => " --mlp plain --biases --fused-qkv --parallel-residual",
            m if m.starts_with("qwen2") => " --biases=attention",
            m if m.starts_with("gemma") => " --tied-embeddings",
            _ => "",
        }
    }

    fn is_typed(&self) -> bool {
        !self.text("ftype").contains('?')
    }

    /// Why the compute buffer of this row is not the whole story, where it is not.
    fn is_excused(&self) -> bool {
        let backend = self.text("backend");
        // A copy of the output matrix is kept; the buffer is split with the host.
        backend.starts_with("CANN") || backend.contains("0 layers offloaded")
    }

    fn failures(&self, answer: &Value) -> Vec<String> {
        let off = |key: &str, column: &str| {
            let logged: f64 = self.text(column).parse().ok()?;
            let found = answer[key].as_f64()? / f64::from(1 << 20);
            Some(100.0 * (found - logged).abs() / logged)
        };
        [
            ("weights_bytes", "log_weights_MiB", 0.5, self.is_typed()),
            ("kv_cache_bytes", "log_kv_MiB", 0.1, true),
            ("activation_bytes", "log_compute_MiB", 2.0, !self.is_excused()),
        ]
        .into_iter()
        .filter(|(.., counts)| *counts)
        .filter_map(|(key, column, most, _)| Some((key, off(key, column)?, most)))
        .filter(|(_, off, most)| off > most)
        .map(|(key, off, _)| format!("{}: {key} is off by {off:.2} %", self.text("model")))
        .collect()
    }
}

#[test]
fn it_agrees_with_the_logs_of_an_engine() -> Result {
    let Some(path) = shared("llm-memory/llamacpp_buffers.tsv") else {
        println!("skipped: no logs beside the workspace");
        return Ok(());
    };
    let logs = fs::read_to_string(path)?;
    let mut lines = logs.lines();
    let header: Vec<&str> = lines.next().ok_or("empty")?.split('\t').collect();
    let rows = lines.map(|line| Row(header.iter().copied().zip(line.split('\t')).collect()));
    let mut failures = Vec::new();
    let mut checked = 0;
    for row in rows.filter(|row| row.text("identity").starts_with("stated")) {
        failures.extend(row.failures(&json(&words(&row.line()), 0)?));
        checked += 1;
    }
    assert!(checked > 0, "the logs name no model");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Every estimate has a range, and only what fits with its upper end fits.
#[test]
fn the_upper_end_of_the_range_has_to_fit() -> Result {
    let at = |limit: &str, code| json(&words(&format!("{MISTRAL} --limit {limit}")), code);
    let answer = at("16GiB", 0)?;
    let [low, total, high] =
        [&answer["range"]["low_bytes"], &answer["total_bytes"], &answer["range"]["high_bytes"]]
            .map(|figure| figure.as_u64().unwrap_or(0));
    assert!(0 < low && low < total && total < high && high <= total / 20 * 21, "{answer:#}");
    assert_eq!(answer["checked"], true);
    assert!(answer["basis"].as_str().is_some_and(|basis| basis.contains("llama.cpp")));
    let between = at(&((total + high) / 2).to_string(), 1)?;
    assert_eq!((&between["fits"], &between["verdict"]), (&false.into(), &"may_not_fit".into()));
    let page = text(&run(&words(&format!("{MISTRAL} --limit {total}")))?.stdout);
    assert!(page.contains("may not fit into") && page.contains("checked: "), "{page}");
    assert_eq!(at(&high.to_string(), 0)?["fits"], true);
    Ok(())
}
