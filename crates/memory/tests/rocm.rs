//! ROCm where it is missing, old, broken or without a device, and where calls fail: on a
//! pretend library, and on the real one where the machine has it.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    unsafe_code,
    reason = "a test fails by panicking, and turns the pretend library's knobs"
)]

#[expect(dead_code, reason = "another test's driver is built there, too")]
mod fake;

use std::ffi::{CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};

use plimsoll_memory::backend::rocm::{Rocm, RocmOptions, count};
use plimsoll_memory::backend::{BackendKind, survey};
use plimsoll_memory::{Address, Bytes, Device, Error, Memory, Request, Result, Stream};

fn open(library: &Path) -> Result<Rocm> {
    Rocm::open_with(&RocmOptions::new(0).library(library).total(Bytes::mib(64)))
}

fn why(result: Result<Rocm>) -> String {
    match result {
        Err(Error::Unavailable { what, why }) => {
            assert!(what.starts_with("ROCm") || what.starts_with("rocm"), "{what}");
            why
        }
        other => panic!("{other:?}"),
    }
}

/// The knobs of a pretend library.
struct Knobs(libloading::Library);

impl Knobs {
    fn of(library: &PathBuf) -> Knobs {
        // SAFETY: it is ours, and has no initializers.
        Knobs(unsafe { libloading::Library::new(library) }.unwrap())
    }

    fn fail(&self, name: &str, skip: c_int, times: c_int, code: c_int) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
        let name = CString::new(name).unwrap();
        // SAFETY: the type is the one in hip.c, and the text outlives the call.
        unsafe { self.0.get::<Fail>(b"fake_fail").unwrap()(name.as_ptr(), skip, times, code) }
    }

    fn calls(&self, name: &str) -> u32 {
        type Calls = unsafe extern "C" fn(*const c_char) -> c_uint;
        let name = CString::new(name).unwrap();
        // SAFETY: as above.
        unsafe { self.0.get::<Calls>(b"fake_calls").unwrap()(name.as_ptr()) }
    }
}

#[test]
fn a_library_that_is_missing_is_named() {
    let text = why(open(Path::new("/no/such/libamdhip64.so")));
    assert!(text.contains("/no/such/libamdhip64.so") && text.contains("install ROCm"), "{text}");
    let rocm: Vec<_> =
        survey().into_iter().filter(|s| s.device.kind == BackendKind::Rocm).collect();
    assert!(!rocm.is_empty(), "the survey has a word on every kind");
}

/// This machine's own library: with devices, without, or missing; each is said.
#[test]
fn the_real_library_answers_or_is_said_to_be_missing() {
    let Err(error) = count() else { return };
    let text = error.to_string();
    let files = ["libamdhip64.so (", "libamdhip64.so.7 (", ".so.6 (", ".so.5 ("];
    let missing = files.iter().all(|name| text.contains(name));
    assert!(
        missing || text.contains("libamdhip64.so") && text.contains("sees no device"),
        "{text}"
    );
    let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    assert!(!missing || !required.contains("libamdhip64"), "required: {text}");
    assert_eq!(Rocm::open(0).unwrap_err(), error, "no panic, no abort, the same word");
}

#[test]
fn old_broken_and_empty_are_told_apart() {
    let text = why(open(&fake::hip(&["-DVERSION=40300000"])));
    assert!(text.contains("is HIP 4.3, older than 5.0"), "{text}");
    for missing in ["hipMalloc", "hipMemGetInfo", "hipEventQuery", "hipGetErrorName"] {
        let text = why(open(&fake::hip(&[&format!("-D{missing}=gone")])));
        assert!(text.contains(&format!("has no {missing}")), "{text}");
    }
    let text = why(open(&fake::hip(&["-DDEVICES=0"])));
    assert!(text.contains("sees no device") && text.contains("/dev/kfd"), "{text}");
    let few = RocmOptions::new(7).library(fake::hip(&[]));
    assert!(why(Rocm::open_with(&few)).contains("there are 2 devices"));
}

#[test]
fn a_device_says_what_it_is() {
    let library = fake::hip(&[]);
    let device = |number| Rocm::open_with(&RocmOptions::new(number).library(&library)).unwrap();
    let (card, apu) = (device(0), device(1));
    assert_eq!((card.info().backend, card.info().name.as_str()), ("rocm", "Pretend Instinct"));
    assert_eq!((card.info().is_unified, apu.info().is_unified), (Some(false), Some(true)));
    assert_eq!((card.capacity(), card.version().as_str()), (Bytes::gib(1), "6.2"));
    let block = card.allocate(Request::new(Bytes::mib(100))).unwrap();
    assert_eq!(card.free_memory().unwrap(), Bytes::gib(1) - Bytes::mib(100));
    assert_eq!(apu.free_memory().unwrap(), Bytes::gib(1), "another device");
    card.release(block, Stream::DEFAULT).unwrap();
    assert!(card.write(Address { buffer: 4096, offset: 0 }, b"x").is_err(), "not ours");
}

#[test]
fn an_error_of_any_call_is_an_error_and_loses_nothing() {
    let library = fake::hip(&["-DTOTAL=(64ul<<20)"]);
    let knobs = Knobs::of(&library);
    for call in [
        "hipRuntimeGetVersion",
        "hipGetDeviceCount",
        "hipSetDevice",
        "hipDeviceGetName",
        "hipDeviceTotalMem",
    ] {
        knobs.fail(call, 0, 1, 719);
        let error = open(&library).unwrap_err().to_string();
        assert!(error.contains(call) && error.contains("hipErrorLaunchFailure"), "{call}: {error}");
    }
    let device = open(&library).unwrap();
    let block = device.allocate(Request::new(4096u64)).unwrap();
    let stream = device.new_stream().unwrap();
    let event = device.record(stream).unwrap();
    let before = (device.stats(), device.available());
    let mut bytes = [0; 16];
    type SimCall<'a> = Box<dyn FnMut() -> Result<()> + 'a>;
    let calls: Vec<(&str, SimCall<'_>)> = vec![
        ("hipMalloc", Box::new(|| device.allocate(Request::new(1u64)).map(drop))),
        ("hipMemGetInfo", Box::new(|| device.free_memory().map(drop))),
        ("hipMemcpyHtoD", Box::new(|| device.write(block.address(), b"x"))),
        ("hipMemcpyDtoH", Box::new(|| device.read(block.address(), &mut bytes))),
        ("hipStreamCreateWithFlags", Box::new(|| device.new_stream().map(drop))),
        ("hipStreamSynchronize", Box::new(|| device.release(block, stream))),
        ("hipFree", Box::new(|| device.release(block, stream))),
        ("hipStreamWaitEvent", Box::new(|| device.wait(stream, event))),
        ("hipEventCreateWithFlags", Box::new(|| device.record(stream).map(drop))),
        ("hipEventRecord", Box::new(|| device.record(stream).map(drop))),
        ("hipEventQuery", Box::new(|| device.is_done(event).map(drop))),
        ("hipEventSynchronize", Box::new(|| device.synchronize(event))),
    ];
    for (call, mut run) in calls {
        knobs.fail(call, 0, 1, 719);
        let error = run().unwrap_err().to_string();
        assert!(error.contains(call) && error.contains("719"), "{call}: {error}");
        assert_eq!((device.stats(), device.available()), before, "{call}");
        assert!(knobs.calls(call) > 0);
    }
    // A full device is no failure: it is full now.
    knobs.fail("hipMalloc", 0, 1, 2);
    assert!(device.allocate(Request::new(1u64)).unwrap_err().is_full_now());
    knobs.fail("hipEventQuery", 0, 1, 600);
    assert!(!device.is_done(event).unwrap() && device.is_done(event).unwrap());
    device.release(block, stream).unwrap();
    drop(device);
    assert_eq!(
        knobs.calls("hipMalloc"),
        knobs.calls("hipFree") + 1,
        "two refusals, one failed free"
    );
}
