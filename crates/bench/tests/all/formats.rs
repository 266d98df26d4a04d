//! All formats of one record say the same numbers, and none is fooled by hostile text.

use crate::made_up;
use plimsoll::Bytes;
use plimsoll_bench::record::{
    BenchRecord, ClassAccuracy, Confusion, MeasuredWhat, MemoryArchitecture, MemoryEstimate,
    PrecisionRecall, TaskAccuracy,
};
use plimsoll_bench::report::html::{Picture, PictureFormat, PictureItem};
use plimsoll_bench::report::{Rendered, console};

/// The figures that every format for people must show.
fn figures(record: &BenchRecord) -> Vec<String> {
    let safety = &record.memory_safety;
    let line = safety.all_within_limit.map(|_| format!("{:.2} GiB", safety.effective_limit_gb));
    let mut all: Vec<String> = line.into_iter().collect();
    for model in &record.models {
        all.extend(model.name.clone());
        all.extend(model.slot_name.clone());
        all.push(model.status.to_string());
        all.extend(model.gpu_memory.peak_gb.map(|gb| format!("{gb:.2} GiB")));
        let Some(p) = &model.performance else { continue };
        all.push(p.frames.to_string());
        all.extend(p.fps.map(|fps| format!("{fps:.2}")));
        all.extend([p.whole.p50_ms, p.whole.p95_ms, p.whole.p99_ms].map(|ms| format!("{ms:.2}")));
    }
    all
}

#[test]
fn all_formats_say_the_same() {
    for (kind, record) in made_up::every_kind() {
        let Rendered { json, markdown, html, csv } = Rendered::new(&record, &[]).unwrap();
        assert_eq!(serde_json::from_str::<BenchRecord>(&json).unwrap(), record);
        let end = console::end(&record, None);
        for figure in figures(&record) {
            for (format, text) in [("md", &markdown), ("html", &html), ("console", &end)] {
                assert!(text.contains(&figure), "{kind}: no {figure:?} in {format}:\n{text}");
            }
        }
        for doubt in &record.doubts {
            let plain = &doubt.text;
            assert!(markdown.contains(plain) && html.contains(plain) && end.contains(plain));
        }
        for model in record.models.iter() {
            let mb = model.gpu_memory.peak_gb.map(|gb| format!("{:.1}", gb * 1024.0));
            assert!(csv.contains(&mb.unwrap_or_default()), "{kind}: {csv}");
        }
    }
}

/// The columns of every architecture.
const FIGURES: &str =
    "engine,device,input_size,frames,fps,p50_ms,p95_ms,p99_ms,map,map50,energy_per_frame_j";

/// What they hold for a slot.
fn speed(slot: usize, architecture: MemoryArchitecture) -> String {
    let wish = made_up::Wish { architecture, ..Default::default() };
    let (model, _) = made_up::slot(&wish, slot);
    let (p, info) = (model.performance.unwrap(), model.model_info.unwrap());
    let [p50, p95, p99] = [p.whole.p50_ms, p.whole.p95_ms, p.whole.p99_ms];
    let (engine, device, fps) = (info.engine, info.device, p.fps.unwrap());
    format!("{engine},{device},640x640,300,{fps:.3},{p50:.4},{p95:.4},{p99:.4},,,")
}

#[test]
fn columns_fit_the_architecture() {
    let of = |architecture| {
        let wish = made_up::Wish { architecture, ..Default::default() };
        let record = made_up::record(&wish);
        let rendered = Rendered::new(&record, &[]).unwrap();
        (rendered.csv, console::end(&record, None))
    };
    let (csv, end) = of(MemoryArchitecture::Unified);
    assert_eq!(
        csv,
        format!(
            "model,system_memory_mb,cuda_alloc_mb,{FIGURES},notes\n\
             street.onnx,4321.0,900.0,{},slot 0 (yolo11n_rgb); Unified: CUDA is subset of system\n\
             night.engine,4321.0,900.0,{},slot 1 (yolo11n_thermal); Unified: CUDA is subset of \
             system\n",
            speed(0, MemoryArchitecture::Unified),
            speed(1, MemoryArchitecture::Unified),
        )
    );
    assert!(end.contains(
        "System Memory Peak: 4.22 GiB\n  ├─ CUDA Allocator: 0.88 GiB (subset, 20.8 % of system used)\n  └─ Other/OS: 3.34 GiB\nArchitecture: Unified Memory (Orin Nano Developer Kit)\n"
    ));
    let (csv, end) = of(MemoryArchitecture::Discrete);
    let head = format!("model,gpu_memory_mb,system_memory_mb,total_mb,{FIGURES},notes\n");
    assert!(csv.starts_with(&head), "{csv}");
    let speeds = speed(0, MemoryArchitecture::Discrete);
    let line =
        format!("street.onnx,900.0,4321.0,5221.0,{speeds},slot 0 (yolo11n_rgb); Discrete GPU\n");
    assert!(csv.contains(&line), "{csv}");
    assert!(end.contains("Total: 5.10 GiB"));
    let (csv, end) = of(MemoryArchitecture::NoGpu);
    let speeds = speed(0, MemoryArchitecture::NoGpu);
    let start =
        format!("model,process_memory_mb,{FIGURES},notes\nstreet.onnx,900.0,{speeds},slot 0");
    assert!(csv.starts_with(&start), "{csv}");
    assert!(end.contains("Process Memory Peak: 0.88 GiB"));
}

/// The first screen has all figures, and each doubt stands at the figure that it concerns.
#[test]
fn the_page_begins_with_the_results_and_their_doubts() {
    for (kind, record) in made_up::every_kind() {
        let html = Rendered::new(&record, &[]).unwrap().html;
        let ran = record.models.iter().any(|model| model.performance.is_some());
        let results = html.find("section class=\"result").unwrap_or_else(|| panic!("{kind}"));
        let (settings, safety) = (html.find("<h2>Settings"), html.find("<h2>Memory Safety"));
        assert!(safety.is_some_and(|at| at > results) && settings > safety, "{kind}");
        if !ran {
            continue;
        }
        let first = &html[results..safety.unwrap()];
        for name in ["fps", "p50", "p95", "p99", "mAP", "energy a frame", "peak memory"] {
            assert!(
                first.contains(&format!(">{name}<")) || first.contains(&format!(">{name} ")),
                "{kind}: {name}"
            );
        }
        for doubt in record.doubts.iter().filter(|doubt| !doubt.doubt.concerns().is_empty()) {
            let about = doubt.slot.and_then(|slot| record.models.get(slot));
            if about.is_none_or(|model| model.performance.is_some()) {
                let badge = format!("class=\"badge\" title=\"{}\"", doubt.text);
                assert!(html.contains(&badge), "{kind}: {badge}");
            }
        }
        // More than two models are a table, in which the best of a column stands out.
        assert_eq!(html.contains("<table class=\"results\">"), kind == "rows");
    }
}

/// The accuracy of a model with this many classes.
fn judged(map: f64, classes: i64) -> TaskAccuracy {
    let class = |number: i64| ClassAccuracy {
        class: number,
        name: format!("kind {number}"),
        truths: 5 + number as u64,
        map: Some(map),
        ..ClassAccuracy::default()
    };
    let curve = |class| PrecisionRecall {
        class,
        recall: vec![0.0, 0.5, 1.0],
        precision: vec![1.0, 0.9, 0.1],
    };
    let size = classes as usize + 1;
    TaskAccuracy {
        labels: "data.yaml".into(),
        images: 8,
        truths: 40,
        map: Some(map),
        map50: Some(map + 0.2),
        classes: (0..classes).map(class).collect(),
        precision_recall: vec![curve(None), curve(Some(0)), curve(Some(classes - 1))],
        confusion: Confusion {
            names: (0..size).map(|number| format!("kind {number}")).collect(),
            counts: (0..size).map(|row| (0..size).map(|c| u64::from(row == c)).collect()).collect(),
            iou: 0.45,
            score: 0.25,
        },
        ..TaskAccuracy::default()
    }
}

#[test]
fn accuracy_is_shown_and_eighty_classes_fold() {
    let mut record = made_up::rows(&made_up::Wish::default());
    record.models[0].accuracy = Some(judged(0.512, 80));
    record.models[1].accuracy = Some(judged(0.478, 3));
    record.settle();
    let Rendered { html, markdown, csv, .. } = Rendered::new(&record, &[]).unwrap();
    for text in [&html, &markdown, &csv, &console::end(&record, None)] {
        assert!(text.contains("0.512") && text.contains("0.478"), "{text}");
    }
    assert!(csv.contains(",0.51200,0.71200,"), "{csv}");
    assert!(html.contains("<details><summary>80 classes</summary>"));
    assert!(!html.contains("<summary>3 classes"), "a short table stays open");
    assert_eq!(html.matches("<svg class=\"matrix\"").count(), 2);
    // What each gains in time and loses in accuracy, in one plot.
    assert!(
        html.contains("<h2>Accuracy against latency</h2>") && html.contains("-0.034"),
        "{html}"
    );
    let plotted = |record: &BenchRecord| {
        Rendered::new(record, &[]).unwrap().html.contains("Accuracy against latency")
    };
    let mut slots = made_up::record(&made_up::Wish::default());
    slots.models.iter_mut().for_each(|model| model.accuracy = Some(judged(0.5, 3)));
    assert!(!plotted(&slots), "slots see other frames");
    record.models[1].accuracy = None;
    assert!(!plotted(&record), "one point is no plot");
}

/// In a narrow terminal the table is cut to its width, and says the figures.
#[test]
fn a_table_fits_a_terminal_of_eighty_columns() {
    for (kind, record) in made_up::every_kind() {
        let wide = console::table(&record, None);
        let narrow = console::table(&record, Some(80));
        let table = |text: &str| -> Vec<String> {
            text.lines().take(record.models.len() + 1).map(String::from).collect()
        };
        for line in table(&narrow) {
            assert!(line.chars().count() <= 80, "{kind}: {line}");
        }
        assert!(table(&narrow)[0].contains("fps") && table(&narrow)[0].contains("peak memory"));
        assert!(table(&wide)[0].contains("status") && table(&wide)[0].contains("J/frame"));
    }
}

#[test]
fn nothing_measured_is_not_within_the_limit() {
    let record = made_up::record(&made_up::Wish { memory: None, ..Default::default() });
    assert_eq!(record.memory_safety.all_within_limit, None);
    let Rendered { json, markdown, csv, .. } = Rendered::new(&record, &[]).unwrap();
    assert!(json.contains("\"within_limit\": null") && !json.contains("\"peak_gb\": 0"));
    assert!(markdown.contains("❔ **Overall Status**: Not known"));
    assert!(csv.contains("street.onnx,4321.0,,"));
}

#[test]
fn the_summary_comes_first_and_violations_are_shown() {
    for (kind, record) in made_up::every_kind() {
        let markdown = Rendered::new(&record, &[]).unwrap().markdown;
        assert!(markdown.contains("| model | engine | input | fps | p50 |"), "{markdown}");
        let first = markdown.find("\n## ").map(|at| &markdown[at + 4..]);
        assert!(first.is_some_and(|text| text.starts_with("Memory Safety Summary")));
        if kind == "violated" {
            assert!(markdown.contains("❌ **Overall Status**: The limit of 7.43 GiB was exceeded"));
            assert!(markdown.contains("2026-11-15T09:30:02Z: slot 0, 9.00 GiB"));
            assert_eq!((record.exit_code(true), record.exit_code(false)), (1, 0));
        }
        let code = match kind {
            "skipped" => 2,
            _ => 0,
        };
        assert_eq!(record.exit_code(false), code, "{kind}");
    }
}

#[test]
fn hostile_text_stays_text() {
    let mut record = made_up::record(&made_up::Wish::default());
    let evil = "<script>alert(1)</script>\"'\u{1b}[2J";
    record.metadata.run_name = evil.into();
    record.metadata.command_line = vec![evil.into()];
    record.models[0].reason = Some(evil.into());
    record.input_source.streams[0].name = evil.into();
    let picture = Picture {
        name: evil.into(),
        bytes: vec![1, 2, 3],
        format: PictureFormat::Png,
        width: 64,
        height: 48,
        found: vec![PictureItem::boxed([1.0, 2.0, 30.0, 40.0], evil.into(), 0)],
    };
    let Rendered { html, markdown, .. } = Rendered::new(&record, &[picture]).unwrap();
    assert!(!html.contains("<script") && !markdown.contains("<script"));
    assert!(!html.contains('\u{1b}') && !console::end(&record, None).contains('\u{1b}'));
    assert!(html.contains("data:image/png;base64,AQID"));
    assert!(!html.contains("http://") && !html.contains("https://"), "opens offline");
}

#[test]
fn the_start_says_what_holds_the_line() {
    let record = made_up::record(&made_up::Wish::default());
    let text = console::start(
        &record.memory_safety,
        true,
        Some(Bytes::gib(4)),
        &[("Slot 0 (yolo11n_rgb)", "ort on cuda:0"), ("Slot 1 (yolo11n_thermal)", "will not run")]
            .map(|(place, text)| (place.to_string(), text.to_string())),
    );
    for line in [
        "GPU Memory Configuration\n",
        "Limit: 8.00 GiB (profile orin-nano-8gb)\n",
        "Effective Limit: 7.43 GiB\n",
        "Limit Type: hard\n",
        "Methods Applied: gate, pool\n",
        "Verified: yes\n",
        "Workspace: 4.00 GiB\n",
        "Slot 0 (yolo11n_rgb): ort on cuda:0\n",
        "Slot 1 (yolo11n_thermal): will not run\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let line = |what, held| console::memory_progress(what, held, Some(8.0));
    let held = Some(Bytes::mib(5356));
    assert_eq!(line(MeasuredWhat::GpuAllocations, held), "GPU_MEM: 5.23/8.00GiB");
    assert_eq!(line(MeasuredWhat::GpuAllocations, None), "GPU_MEM: –/8.00GiB");
    assert_eq!(line(MeasuredWhat::ProcessMemory, held), "MEM: 5.23/8.00GiB");
}

/// The figures of the whole run, and a GPU's name only where one was used.
#[test]
fn the_memory_of_the_whole_run_has_a_block_of_its_own() {
    for (kind, record) in made_up::every_kind() {
        let usage = &record.system_metrics.gpu_memory;
        let Rendered { markdown, html, csv, .. } = Rendered::new(&record, &[]).unwrap();
        let all = [markdown.clone(), html, csv, console::end(&record, None)].concat();
        let with_gpu = record.system_metrics.architecture != MemoryArchitecture::NoGpu;
        assert_eq!(usage.what.is_gpu(), with_gpu, "{kind}");
        assert_eq!(all.contains("GPU Memory") || all.contains("GPU_MEM"), with_gpu, "{kind}");
        assert_eq!(usage.violations, record.memory_safety.total_violations, "{kind}");
        let title = if with_gpu { "### GPU Memory Usage" } else { "### Memory Usage" };
        for part in [title, "**Limit**", "**Min usage**", "**Mean usage**", "**Peak usage**"] {
            assert!(markdown.contains(part), "{kind}: {part}\n{markdown}");
        }
        for part in ["**Data source**", "**Violations**"] {
            assert!(markdown.contains(part), "{kind}: {part}\n{markdown}");
        }
        if kind == "unified" {
            assert!(
                markdown.contains("### Architecture: Unified Memory (Orin Nano Developer Kit)")
            );
            assert!((usage.percent_of_system_used.unwrap() - 900.0 / 43.21).abs() < 0.01);
        } else if kind == "no gpu" || kind == "discrete" {
            assert_eq!(usage.percent_of_system_used, None, "{kind}");
        }
    }
}

#[test]
fn what_two_digits_would_round_away_is_told_in_a_smaller_unit() {
    let mut record = made_up::record(&made_up::Wish::default());
    let model = &mut record.models[0];
    model.gpu_memory.peak_gb = Some(43.2 / 1024.0);
    let mib = |mib: u64| Bytes::mib(mib).0;
    model.estimate = Some(MemoryEstimate {
        weights_bytes: mib(2),
        activation_bytes: mib(1),
        overhead_bytes: 0,
        total_bytes: mib(3),
    });
    let text = Rendered::new(&record, &[]).unwrap().markdown;
    assert!(text.contains("**Peak**: 43.2 MiB"), "{text}");
    assert!(text.contains("3.0 MiB for weights and activations only; 43.2 MiB were measured"));
    // With the engine's own in it, both are of the same.
    let estimate = record.models[0].estimate.as_mut().unwrap();
    (estimate.overhead_bytes, estimate.total_bytes) = (mib(37), mib(40));
    let text = Rendered::new(&record, &[]).unwrap().markdown;
    assert!(text.contains("40.0 MiB against 43.2 MiB measured (-7 %)"), "{text}");
    assert!(text.contains("**Chosen**: asked for by name"));
}
