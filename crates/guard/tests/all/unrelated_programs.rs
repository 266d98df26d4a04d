//! Programs that have nothing to do with a GPU notice nothing.

use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use crate::stage::{MIB, Stage, built};

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn ordinary_programs_are_unharmed() {
    let stage = Stage::new();
    for (program, words) in [
        ("ls", &["/"][..]),
        ("bash", &["-c", "for i in 1 2 3; do echo $((i * i)); done | sort -n; exit 7"]),
        (
            "python3",
            &[
                "-c",
                "import ctypes, threading, subprocess; print(ctypes.CDLL(None).getpid() > 0, subprocess.run(['true']).returncode)",
            ],
        ),
        ("node", &["-e", "console.log([1, 2].map(x => x + 1).join())"]),
    ] {
        if !is_there(program) {
            eprintln!("skipped: {program} is not installed");
            continue;
        }
        let plain = stage.bare(program).args(words).output().unwrap();
        let guarded = stage.guarded(program).args(words).output().unwrap();
        assert_eq!(plain.status.code(), guarded.status.code(), "{program}");
        assert_eq!(plain.stdout, guarded.stdout, "{program}");
        assert_eq!(plain.stderr, guarded.stderr, "{program}");
    }
    assert!(stage.watch.ledger().loaded.load(Relaxed) > 0);
}

/// Before a device is used, NVML shows the limit that it will have; and before CUDA has started, when
/// it is not known which number a device has, the lowest.
#[test]
fn nvml_shows_the_limit_of_a_device_that_was_not_used_yet() {
    let script = "\
import ctypes
cuda, nvml = ctypes.CDLL('libcuda.so.1'), ctypes.CDLL('libnvidia-ml.so.1')
device, info = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
nvml.nvmlInit_v2()
def total(number):
    nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, info)
    return info[0] >> 20
before = total(0), total(1)
cuda.cuInit(0)
print(before, (total(0), total(1)))
";
    if !is_there("python3") {
        return eprintln!("skipped: python3 is not installed");
    }
    let stage = Stage::with(|settings| settings.limits = vec![(1, 512 * MIB)]);
    let found = stage.set("FAKE_DEVICES", 2).run("python3", &["-c", script]);
    assert_eq!(found, "(512, 512) (2048, 512)\n");
}

#[test]
fn nvml_shows_the_limit() {
    let script = "\
import ctypes
cuda, nvml = ctypes.CDLL('libcuda.so.1'), ctypes.CDLL('libnvidia-ml.so.1')
context, pointer, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512 << 20))
nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
one, two = (ctypes.c_uint64 * 3)(), (ctypes.c_uint64 * 5)()
nvml.nvmlDeviceGetMemoryInfo(device, one); nvml.nvmlDeviceGetMemoryInfo_v2(device, two)
print([x >> 20 for x in one], [x >> 20 for x in two][1:], nvml.nvmlDeviceGetMemoryInfo(device, None))
";
    if !is_there("python3") {
        return eprintln!("skipped: python3 is not installed");
    }
    let found = Stage::new().run("python3", &["-c", script]);
    assert_eq!(found, "[2048, 1536, 512] [2048, 0, 1536, 512] 2\n");
}

#[test]
fn a_static_program_does_not_know_the_guard() {
    let at = built().join("static");
    let source = built().join("static.c");
    std::fs::write(
        &source,
        "int puts(const char *); int main(void) { puts(\"static\"); return 0; }",
    )
    .unwrap();
    let built = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&at).output().unwrap();
    if !built.status.success() {
        return eprintln!("skipped: no static C library");
    }
    let stage = Stage::new();
    assert_eq!(stage.run("static", &[]), "static\n");
    assert_eq!(stage.watch.ledger().loaded.load(Relaxed), 0);
}
