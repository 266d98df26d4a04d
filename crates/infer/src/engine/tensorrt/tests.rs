//! The engine on a few lines of C that stand in for the shim.

use std::path::PathBuf;
use std::process::Command;

use plimsoll::Bytes;

use super::*;
use crate::engine::{EngineChoice, EngineKind, open};
use plimsoll_models::ModelSource;

/// Builds the stand-in; `None`, and a word of it, where there is no C compiler.
fn fake(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_tensorrt.c");
    let library = folder.join(find::FILE);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&library, &source])
        .status();
    match built {
        Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    }
    Some(library)
}

struct FakeTensorrt {
    folder: tempfile::TempDir,
    options: EngineOptions,
}

impl FakeTensorrt {
    fn new() -> Option<FakeTensorrt> {
        let folder = tempfile::tempdir().expect("a directory");
        let library = fake(folder.path())?;
        let options = EngineOptions { library: Some(library), ..EngineOptions::default() };
        Some(FakeTensorrt { folder, options })
    }

    fn file(&self, name: &str, bytes: &[u8]) -> ModelSource {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        ModelSource::path(path)
    }

    fn open(&self, bytes: &[u8]) -> InferResult<Box<dyn InferenceEngine>> {
        open(EngineKind::Tensorrt, &self.file("a.engine", bytes), &self.options)
    }
}

fn image(side: usize) -> Tensor {
    let mut image = Tensor::zeros(&[1, 3, side, side]);
    image.data.iter_mut().zip(0..).for_each(|(x, n)| *x = (n % 100) as f32);
    image
}

#[test]
fn an_engine_runs_and_its_memory_is_counted() {
    let Some(mut bench) = FakeTensorrt::new() else { return };
    bench.options.memory_limit = Some(Bytes::mib(1));
    let json = r#"{"names": {"0": "ship"}, "stride": 32, "task": "detect", "imgsz": [64, 64]}"#;
    for (header, metadata) in [(true, 4), (false, 0)] {
        let plan = b"FAKE 64 0 1000".to_vec();
        let length = (json.len() as i32).to_le_bytes();
        let file = if header { [&length, json.as_bytes(), &plan].concat() } else { plan };
        let mut engine = bench.open(&file).expect("opened");
        assert_eq!(engine.model().metadata.len(), metadata);
        assert_eq!(engine.model().input_size, Some((64, 64)));
        assert_eq!(engine.model().outputs, [("output0".to_string(), vec![1, 7, 8])]);
        let info = engine.info();
        assert_eq!((info.name, &*info.device), ("tensorrt", "cuda:0"));
        assert_eq!(info.version.as_deref(), Some("8.5.1"));
        assert!(info.limit_applied && info.fallbacks.is_empty(), "{info:?}");
        assert!(info.chosen.contains("scratch memory 4.00 KiB"), "{}", info.chosen);
        let out = engine.run(&image(64)).expect("run");
        assert!(out[0].data.iter().zip(0..).all(|(&x, k)| x == (3 * k) as f32), "{:?}", out[0]);
        assert!(engine.run(&image(32)).is_err(), "another size");
        // Its own input, in place.
        let input = engine.input().expect("its own");
        assert_eq!(input, image(64).data, "what was run last");
        input.iter_mut().for_each(|x| *x += 1.0);
        let out = engine.run_input().expect("run");
        assert!(out[0].data.iter().zip(0..).all(|(&x, k)| x == (3 * k + 2) as f32), "{out:?}");
        let taken = 1000 + 4096 + 4 * (3 * 64 * 64 + 56);
        let memory = engine.memory().expect("counted");
        assert_eq!((memory.in_use, memory.peak), (Some(taken), Some(taken)));
        assert_eq!(memory.limit, Some(1 << 20));
    }
}

#[test]
fn half_precision_and_any_size_are_fed_from_f32() {
    let Some(mut bench) = FakeTensorrt::new() else { return };
    bench.options.input_size = Some((96, 96));
    let mut engine = bench.open(b"FAKE 0 1 10").expect("opened");
    assert_eq!(engine.model().input_shape, [1, 3, 96, 96]);
    engine.input().expect("its own").copy_from_slice(&image(96).data);
    let out = engine.run_input().expect("run");
    assert!(out[0].data.iter().zip(0..).all(|(&x, k)| x == (3 * k) as f32), "{:?}", out[0]);
    bench.options.input_size = None;
    let error = bench.open(b"FAKE 0 1 10").err().expect("too large").to_string();
    assert!(error.contains("does not take images"), "{error}");
}

#[test]
fn refusals_are_in_tensorrts_own_words() {
    let Some(mut bench) = FakeTensorrt::new() else { return };
    let error = bench.open(b"ftrt another version").err().expect("refused").to_string();
    assert!(error.contains("not compatible with this version"), "{error}");
    assert!(error.contains("TensorRT here is 8.5.1"), "{error}");
    bench.options.memory_limit = Some(Bytes(5000));
    let error = bench.open(b"FAKE 64 0 1000").err().expect("no room").to_string();
    assert!(error.contains("scratch") && error.contains("the limit refused 4.00 KiB"), "{error}");
    bench.options.memory_limit = None;
    bench.options.device = EngineDevice::Cuda(3);
    let error = bench.open(b"FAKE 64 0 1000").err().expect("no such device").to_string();
    assert!(error.contains("invalid device"), "{error}");
    bench.options.device = EngineDevice::Cpu;
    assert!(matches!(bench.open(b"FAKE 64 0 1000"), Err(InferError::Unavailable { .. })));
}

/// The session behind an engine: what stays on the device is neither copied in nor out, and
/// whatever a run puts behind itself, it is waited for.
#[test]
fn what_is_on_the_device_is_not_copied() {
    let Some(bench) = FakeTensorrt::new() else { return };
    let shim = find::shim(bench.options.library.as_deref()).expect("loaded");
    let budget = Arc::new(Budget::new(Bytes::MAX));
    let mut session =
        shim.open(b"FAKE 64 0 10", (0, None), false, &ShimBudget::new(&budget)).expect("opened");
    assert!(session.floats(0).is_none(), "nothing is taken before it is prepared");
    session.prepare().expect("prepared");
    assert_eq!(session.floats(0).expect("there").numbers(), 3 * 64 * 64);
    let (input, mut out) = (image(64).data, vec![-1.0; 56]);
    let fine = || Ok(());
    session.run(&mut [TensorBuffer::In(&input), TensorBuffer::OnDevice], fine).expect("run");
    assert!(out.iter().all(|&x| x == -1.0));
    session.run(&mut [TensorBuffer::OnDevice, TensorBuffer::Out(&mut out)], fine).expect("run");
    assert!(out.iter().zip(0..).all(|(&x, k)| x == (3 * k) as f32), "{out:?}");
    out.fill(-1.0);
    let error = session
        .run(&mut [TensorBuffer::OnDevice, TensorBuffer::Out(&mut out)], || Err("no".into()));
    assert_eq!(error, Err("no".to_string()));
    assert_eq!(out[1], 3.0, "it was waited for all the same");
    assert!(session.run(&mut [TensorBuffer::OnDevice], fine).is_err());
    assert!(
        session.run(&mut [TensorBuffer::In(&input[1..]), TensorBuffer::OnDevice], fine).is_err()
    );
}

#[test]
fn a_library_of_another_version_says_how_to_build_it_again() {
    let Some(bench) = FakeTensorrt::new() else { return };
    let folder = bench.folder.path();
    let (source, library) = (folder.join("old.c"), folder.join("libold_tensorrt.so"));
    std::fs::write(&source, "int plimsoll_trt_abi(void) { return 1; }").expect("written");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("run").success());
    let error = find::shim(Some(&library)).expect_err("too old").to_string();
    assert!(error.contains("version 1 of our interface"), "{error}");
    assert!(error.contains("plimsoll generate --tensorrt"), "{error}");
}

#[test]
fn a_stem_prefers_its_engine_and_says_when_it_cannot() {
    let Some(mut bench) = FakeTensorrt::new() else { return };
    bench.file("a.engine", b"FAKE 64 0 1000");
    let stem = ModelSource::path(bench.folder.path().join("a"));
    let engine = open(EngineChoice::Auto, &stem, &bench.options).expect("the engine");
    assert_eq!(engine.info().name, "tensorrt");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/tiny.onnx");
    std::fs::copy(tiny, bench.folder.path().join("a.onnx")).expect("copied");
    let engine = open(EngineChoice::Auto, &stem, &bench.options).expect("the engine still");
    assert_eq!(engine.info().name, "tensorrt");
    let engine = open(EngineKind::Rten, &stem, &bench.options).expect("the graph");
    assert!(engine.model().name.ends_with("a.onnx"));
    // A library that is not there: the graph runs, and the report says so.
    bench.options.library = Some(bench.folder.path().join("no_tensorrt.so"));
    let engine = open(EngineChoice::Auto, &stem, &bench.options).expect("the graph");
    let info = engine.info();
    assert!(info.name != "tensorrt" && info.fallbacks[0].contains("a.engine"), "{info:?}");
    assert!(info.fallbacks[0].contains("plimsoll generate --tensorrt"), "{info:?}");
    bench.options.strict = true;
    assert!(open(EngineChoice::Auto, &stem, &bench.options).is_err());
    let only = bench.file("b.engine", b"FAKE 64 0 1000");
    let error = open(EngineKind::Rten, &only, &bench.options).err().expect("no graph").to_string();
    assert!(error.contains(".onnx or .pt file that it was built from"), "{error}");
    let graph = ModelSource::path(bench.folder.path().join("a.onnx"));
    let error = open(EngineKind::Tensorrt, &graph, &bench.options).err().expect("no engine");
    assert!(error.to_string().contains("plimsoll export"), "{error}");
}

#[test]
fn an_engine_is_built_from_a_checkpoint_with_its_pictures() {
    let Some(bench) = FakeTensorrt::new() else { return };
    let pictures = bench.folder.path().join("pictures");
    std::fs::create_dir(&pictures).expect("made");
    for name in ["a.png", "b.png"] {
        let grey = image::GrayImage::from_pixel(20, 10, image::Luma([128]));
        grey.save(pictures.join(name)).expect("saved");
    }
    std::fs::write(pictures.join("c.png"), b"broken").expect("written");
    let checkpoint = include_bytes!("../../../../models/tests/fixtures/small11.pt");
    let mut options = build::BuildOptions {
        half: true,
        calibration: Some(pictures.display().to_string()),
        workspace: Bytes::gib(2),
        library: bench.options.library.clone(),
        ..build::BuildOptions::default()
    };
    let mut graph = |half: bool| {
        assert!(!half, "TensorRT 8 decides by itself");
        let options = plimsoll_models::GraphOptions::sized((64, 64));
        Ok(plimsoll_models::pt::to_onnx(checkpoint, &options).expect("a graph"))
    };
    let built = build::build("small11.pt", &mut graph, &options).expect("built");
    assert_eq!((&*built.by, built.pictures), ("TensorRT 8.5.1", 2));
    assert_eq!(built.ranges.as_deref(), Some(&b"ranges of 2 pictures"[..]));
    assert_eq!(built.timings.as_ref().map(Vec::len), Some(1));
    let EnginePlan { plan, metadata } = EnginePlan::split(&built.file);
    let text = String::from_utf8_lossy(plan);
    let asked = "fp16=1 int8=1 workspace=2147483648 pictures=2 timings=0 ranges=0";
    assert_eq!(text, format!("FAKE 64 0 1000 {asked}"));
    assert_eq!(metadata["stride"], "16");
    let names = crate::decode::parse_names(&metadata["names"]).expect("names");
    assert_eq!(names, ["ship", "it's", "buoy"]);
    let mut engine = bench.open(&built.file).expect("it runs");
    assert!(engine.run(&image(64)).is_ok());
    // What was found and timed is handed back: no picture is looked at, not even for its name.
    options.calibration = Some("/nowhere".into());
    (options.ranges, options.timings) = (built.ranges, built.timings);
    let again = build::build("small11.pt", &mut graph, &options).expect("built again");
    let text = String::from_utf8_lossy(EnginePlan::split(&again.file).plan).into_owned();
    assert!(text.ends_with("int8=1 workspace=2147483648 pictures=0 timings=1 ranges=20"), "{text}");
    assert_eq!((again.pictures, again.ranges), (0, None));
    options.library = Some("/nowhere/libplimsoll_tensorrt.so".into());
    let error = build::build("x", &mut graph, &options).expect_err("not there").to_string();
    assert!(error.contains("/nowhere/libplimsoll_tensorrt.so"), "{error}");
}

/// The headers of the real one cannot be had everywhere; what the shim uses of them is in a
/// stand-in, by version.
#[test]
fn the_shim_compiles_for_every_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (major, minor) in [(8, 5), (8, 6), (10, 0), (10, 13), (11, 0)] {
        let compiled = Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            .arg(format!("-DNV_TENSORRT_MAJOR={major}"))
            .arg(format!("-DNV_TENSORRT_MINOR={minor}"))
            .arg("-I")
            .arg(root.join("tests/fixtures/tensorrt"))
            .arg(root.join("src/engine/tensorrt/shim.cpp"))
            .output();
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(error) => return println!("skipped: no C++ compiler: {error}"),
        };
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{major}.{minor}: {said}");
    }
}
