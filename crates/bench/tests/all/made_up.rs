//! Made-up runs of every kind, for all tests: fed frame by frame as the loop would.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll::Bytes;
use plimsoll_bench::doubt::Doubt;
use plimsoll_bench::measure::{
    FrameSample, MemorySource, Phase, SlotMeter, SystemFacts, SystemMeter, SystemSample,
};
use plimsoll_bench::record::*;

/// What is to be made up.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) architecture: MemoryArchitecture,
    pub(crate) frames: u64,
    pub(crate) memory: Option<Bytes>,
    pub(crate) seed: u64,
    pub(crate) slowdown: f64,
}

impl Default for Wish {
    fn default() -> Self {
        Wish {
            architecture: MemoryArchitecture::Unified,
            frames: 300,
            memory: Some(Bytes::mib(900)),
            seed: 7,
            slowdown: 1.0,
        }
    }
}

/// The frames of a slot: about 10 ms each, now and then a late one.
pub(crate) fn frames(wish: &Wish, slot: usize) -> Vec<FrameSample> {
    let mut state = wish.seed * 2 + slot as u64 + 1;
    let mut uniform = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let mut at = Duration::ZERO;
    let mut all = Vec::new();
    for frame in 0..wish.frames + 10 {
        let us = |ms: f64| Duration::from_nanos((ms * 1e6 * wish.slowdown) as u64);
        let late = if uniform() < 0.03 { 6.0 * uniform() } else { 0.0 };
        let (prepare, decode) = (us(0.5 + 0.1 * uniform()), us(0.3 + 0.1 * uniform()));
        let bell: f64 = (0..4).map(|_| uniform()).sum::<f64>() / 4.0;
        let inference = us(8.0 + 2.4 * bell + late);
        let whole = prepare + inference + decode + Duration::from_micros(12);
        let ramp = Bytes::mib((frame * 40).min(300));
        let memory = wish.memory.map(|m| m.saturating_sub(Bytes::mib(300)).saturating_add(ramp));
        let phase = match frame {
            0..10 => Phase::Warmup,
            10..40 => Phase::Cold,
            _ => Phase::Steady,
        };
        all.push(FrameSample {
            slot,
            frame,
            at,
            prepare,
            inference,
            decode,
            whole,
            memory,
            phase,
            decode_ahead: Some(us(2.0 + uniform())),
            late: None,
        });
        at += whole + Duration::from_micros(300);
    }
    all
}

pub(crate) fn safety(limit_type: ReportLimitType) -> MemorySafety {
    MemorySafety {
        all_within_limit: None,
        reason: None,
        limit_gb: 8.0,
        effective_limit_gb: 7.43,
        profile: Some("orin-nano-8gb".into()),
        limit_type,
        verified: limit_type == ReportLimitType::Hard,
        methods_applied: vec!["gate".into(), "pool".into()],
        total_violations: 0,
        violation_details: vec![],
        closest_to_limit: vec![],
        warnings: vec![],
    }
}

const LIMIT: Bytes = Bytes((7.43 * (1u64 << 30) as f64) as u64);

/// What is in the slots.
pub(crate) const MODELS: [&str; 2] = ["street.onnx", "night.engine"];

pub(crate) fn slot(wish: &Wish, slot: usize) -> (ModelRecord, SlotMeter) {
    let mut meter = SlotMeter::new(None);
    frames(wish, slot).iter().for_each(|frame| meter.push(frame));
    let no_gpu = wish.architecture == MemoryArchitecture::NoGpu;
    let memory = meter.memory(&source(wish));
    let mut record = ModelRecord::idle(slot, Status::Completed, "", memory);
    record.reason = None;
    record.name = Some(MODELS[slot].into());
    let unknown = [
        ("accuracy", "the truth is not known"),
        ("energy_per_frame_j", "no sensor reports the power of the whole machine"),
        ("energy_of", "no sensor reports the power of the whole machine"),
    ];
    record.unknown = unknown.map(|(field, why)| (field.to_string(), why.to_string())).into();
    record.performance = meter.performance();
    record.timeline = meter.timeline();
    record.estimate = Some(MemoryEstimate {
        weights_bytes: 10_463_840,
        activation_bytes: 69_930_000,
        overhead_bytes: 0,
        total_bytes: 80_393_840,
    });
    record.model_info = Some(ModelDescription {
        weights: format!("/models/{}", MODELS[slot]),
        bytes: 10_700_000,
        input_size: Some([640, 640]),
        classes: Some(80),
        engine: "ort".into(),
        engine_version: Some("1.23.0".into()),
        device: if no_gpu { "cpu" } else { "cuda:0" }.into(),
        chosen: "asked for by name".into(),
        nodes_by_provider: [("CUDAExecutionProvider".to_string(), 230)].into(),
        fallbacks: vec![],
        limit_applied: true,
        workspace_bytes: None,
    });
    record.detection_summary = Some(DetectionSummary {
        total: 742,
        per_class: [("person".to_string(), 700), ("dog".to_string(), 42)].into(),
        per_frame_mean: Some(742.0 / wish.frames as f64),
    });
    (record, meter)
}

fn source(wish: &Wish) -> MemorySource {
    let no_gpu = wish.architecture == MemoryArchitecture::NoGpu;
    MemorySource {
        what: if no_gpu { MeasuredWhat::ProcessMemory } else { MeasuredWhat::GpuAllocations },
        name: if no_gpu { "/proc/self/status" } else { "ort arena" }.into(),
        obtained: if no_gpu { HowObtained::Sampled } else { HowObtained::Counted },
        limit: Some(LIMIT),
        limit_type: ReportLimitType::Hard,
        counted_peak: None,
        system_peak: (!no_gpu).then_some(Bytes::mib(4321)),
    }
}

fn machine(wish: &Wish) -> SystemMetrics {
    let mut meter = SystemMeter::default();
    let unified = wish.architecture == MemoryArchitecture::Unified;
    for i in 0..60 {
        let t = f64::from(i) * 0.1;
        meter.push(&SystemSample {
            t,
            cpu_percent: Some(30.0 + 10.0 * (t * 2.0).sin()),
            ram_used_gb: Some(3.6 + 0.1 * t),
            ram_gpu_share_gb: unified.then_some(0.9),
            swap_used_gb: Some(0.0),
            gpu_load_percent: unified.then_some(78.0 + 8.0 * t.cos()),
            temperatures_c: match unified {
                true => BTreeMap::from([("cpu".into(), 48.0 + t), ("gpu".into(), 46.0 + 1.4 * t)]),
                false => BTreeMap::new(),
            },
            power_w: match unified {
                true => BTreeMap::from([("VDD_IN".into(), 9.0 + t.sin())]),
                false => BTreeMap::new(),
            },
            ..SystemSample::default()
        });
    }
    let facts = SystemFacts {
        ram_total_gb: Some(7.43),
        clocks_locked: unified.then_some(true),
        power_mode: unified.then(|| "15W".to_string()),
        whole_rail: unified.then(|| "VDD_IN".to_string()),
        unknown: [("power_mode".to_string(), "nvpmodel is not installed".to_string())].into(),
    };
    for frame in (0..2).flat_map(|slot| frames(wish, slot)) {
        frame.memory.iter().for_each(|held| meter.push_memory(frame.at.as_secs_f64(), *held));
    }
    let usage = meter.usage(&source(wish));
    meter.metrics(wish.architecture, &facts, usage, wish.frames * 2, 6.0)
}

/// A run as it was wished for.
pub(crate) fn record(wish: &Wish) -> BenchRecord {
    let (rgb, meter) = slot(wish, 0);
    let (thermal, _) = slot(wish, 1);
    let mut record = BenchRecord {
        schema_version: SCHEMA_VERSION.into(),
        metadata: metadata(),
        config: config(),
        input_source: InputSource {
            streams: vec![InputStream {
                name: "street.mp4".into(),
                kind: "video".into(),
                slots: vec![0, 1],
                frames: Some(wish.frames),
                rate_fps: Some(30.0),
                read: wish.frames + 10,
                corrupt: 0,
            }],
            unpaired: None,
        },
        models: vec![rgb, thermal],
        fusion: None,
        system_metrics: machine(wish),
        memory_safety: safety(ReportLimitType::Hard),
        shared: SharedMemory::unmeasured("the engine does not tell"),
        doubts: meter.drift().map(|d| DoubtRecord::new(Some(0), d)).into_iter().collect(),
        summary: RecordSummary::default(),
        interrupted: false,
        interruption: None,
    };
    record.settle();
    record
}

fn metadata() -> Metadata {
    Metadata {
        tool: "plimsoll".into(),
        tool_version: "0.1.0".into(),
        run_name: "night-1".into(),
        started: "2026-11-15T09:30:00Z".into(),
        finished: Some("2026-11-15T09:30:09Z".into()),
        host: Some("board".into()),
        os: "linux".into(),
        arch: "aarch64".into(),
        device_name: Some("Orin Nano Developer Kit".into()),
        command_line: vec!["plimsoll".into(), "bench".into()],
    }
}

fn config() -> BenchConfig {
    BenchConfig {
        mode: "dual".into(),
        engine: "auto".into(),
        device: "auto".into(),
        imgsz: None,
        conf: 0.25,
        iou: 0.45,
        max_det: 300,
        max_frames: Some(300),
        warmup: 10,
        rate_fps: None,
        duration_s: None,
        loop_source: false,
        parallel: false,
        strict: false,
        repeat: 1,
        gpu_mem_limit_gb: 8.0,
        profile: Some("orin-nano-8gb".into()),
        keep_free_gb: None,
        sync_tolerance_ms: None,
        metrics_interval_s: 0.5,
    }
}

/// A run of three rows, without slots.
pub(crate) fn rows(wish: &Wish) -> BenchRecord {
    let mut record = record(wish);
    let mut third = record.models[1].clone();
    (third.slot, third.energy_per_frame_j) = (2, Some(0.125));
    third.energy_of = Some(EnergyOf::Machine);
    third.forget_reasons_of_known();
    record.models.push(third);
    for (model, engine) in record.models.iter_mut().zip(["ort", "ort", "tensorrt"]) {
        model.slot_name = None;
        model.row = model.name.as_ref().map(|name| format!("{name}, {engine}"));
    }
    record.config.mode = "rows".into();
    record.input_source.streams[0].slots = vec![0, 1, 2];
    record
}

/// A run of every kind that there is.
pub(crate) fn every_kind() -> Vec<(&'static str, BenchRecord)> {
    let wish = Wish::default();
    let of = |architecture| record(&Wish { architecture, ..wish });
    let mut failed = record(&wish);
    let idle = |why: &str| {
        GpuMemory::unmeasured(MeasuredWhat::GpuAllocations, Some(LIMIT), ReportLimitType::Hard, why)
    };
    let why = "cannot read model.onnx: <b>truncated</b> | & `bad`";
    failed.models[0] = ModelRecord::idle(0, Status::Failed, why, idle(why));
    let mut skipped = failed.clone();
    for slot in 0..2 {
        let why = "no weights were given";
        skipped.models[slot] = ModelRecord::idle(slot, Status::Skipped, why, idle(why));
    }
    let mut interrupted = record(&wish);
    interrupted.models[1].status = Status::Interrupted;
    interrupted.models[1].reason = Some("stopped by the user".into());
    interrupted.interrupted = true;
    interrupted.interruption = Some("stopped by the user".into());
    interrupted.metadata.finished = None;
    let mut violated = record(&Wish { memory: Some(Bytes::gib(9)), ..wish });
    violated.memory_safety.violated(Violation {
        time: "2026-11-15T09:30:02Z".into(),
        slot: Some(0),
        bytes: Bytes::gib(9).get(),
    });
    violated.input_source.streams[0].corrupt = 3;
    violated.doubts.push(DoubtRecord::new(None, Doubt::OtherLoad { percent: 31.0 }));
    let mut all = vec![
        ("unified", record(&wish)),
        ("discrete", of(MemoryArchitecture::Discrete)),
        ("no gpu", of(MemoryArchitecture::NoGpu)),
        ("unmeasured", record(&Wish { memory: None, ..wish })),
        ("failed", failed),
        ("skipped", skipped),
        ("interrupted", interrupted),
        ("violated", violated),
        ("rows", rows(&wish)),
    ];
    all.iter_mut().for_each(|(_, record)| record.settle());
    all
}
