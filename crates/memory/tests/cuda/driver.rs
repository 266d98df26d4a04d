//! A driver that is missing, old, without a device, or that fails.

use plimsoll_memory::backend::cuda::{Cuda, CudaOptions};
use plimsoll_memory::{Bytes, Device, Error, Memory, MemoryConfig, Packing, Pool, Request, Stream};
use std::sync::Arc;

use crate::front::{Front, Kernels, fronts};

/// The text of the refusal; anything but `Unavailable` fails.
fn unavailable(options: &CudaOptions) -> String {
    match Cuda::open_with(options) {
        Err(error @ Error::Unavailable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_library_is_named() {
    let text = unavailable(&CudaOptions::new(0).library("/no/such/libcuda.so.1"));
    for part in ["CUDA", "/no/such/libcuda.so.1", "No such file", "install"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_library_that_is_no_driver_is_told() {
    let text = unavailable(&CudaOptions::new(0).library("libm.so.6"));
    assert!(text.contains("libm.so.6") && text.contains("cuDriverGetVersion"), "{text}");
}

#[test]
fn a_machine_without_a_device_is_told() {
    for front in fronts("no_device", &["-DDEVICES=0"]) {
        let text = unavailable(&front.options());
        assert!(text.contains("cuInit") && text.contains("no device"), "{text}");
    }
}

#[test]
fn an_old_driver_is_told_before_a_missing_function() {
    for front in fronts("old", &["-DVERSION=9020", "-DcuMemAlloc_v2=gone"]) {
        let text = unavailable(&front.options());
        assert!(text.contains("CUDA 9.2") && text.contains("10.2"), "{text}");
    }
}

#[test]
fn a_missing_function_is_named() {
    for function in ["cuInit", "cuMemAlloc_v2", "cuEventQuery", "cuLaunchKernel"] {
        let flag = format!("-D{function}=gone");
        for front in fronts("missing", &[&flag]) {
            let text = unavailable(&front.options());
            assert!(text.contains(&format!("has no {function}")), "{text}");
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_told() {
    for front in fronts("number", &[]) {
        let text = unavailable(&CudaOptions::new(99).library(&front.library));
        assert!(text.contains("cuda:99"), "{text}");
    }
}

fn pool(device: Arc<Cuda>, packing: Packing) -> Arc<Pool> {
    let config = MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_packing(packing);
    Arc::new(Pool::new(device, config).unwrap())
}

/// What cannot be mapped is served by plain blocks, and the reason is told.
fn assert_plain(front: &Front, why: &str) {
    let device = front.open();
    assert!(device.mapping().is_none());
    let told = device.why_not_mapped().unwrap();
    assert!(told.contains(why), "{why} in {told}");
    let pool = pool(device, Packing::Quick);
    let block = pool.allocate(Request::new(Bytes::mib(5))).unwrap();
    pool.release(block, Stream::DEFAULT).unwrap();
    assert_eq!(pool.trim().unwrap(), Bytes::mib(6));
}

#[test]
fn without_the_functions_for_pages_there_are_plain_blocks() {
    for front in fronts("no_pages", &["-DcuMemCreate=gone"]) {
        assert_plain(&front, "cuMemCreate");
    }
}

#[test]
fn where_pages_are_refused_there_are_plain_blocks() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"] {
        for front in fronts("refused_pages", &[]) {
            front.fail(call, 0, 1, 801);
            assert_plain(&front, call);
        }
    }
}

#[test]
fn a_driver_without_graphs_says_so_when_asked() {
    for front in fronts("no_graphs", &["-DcuStreamBeginCapture_v2=gone"]) {
        let device = front.open();
        let stream = device.new_stream().unwrap();
        let error = device.begin_graph(stream).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("cuStreamBeginCapture_v2"), "{error}");
    }
}

/// Everything that a program does with a device. Ends at the first failure, as one would.
fn program(front: &Front) -> Result<(), Error> {
    let device = Arc::new(Cuda::open_with(&front.options().total(Bytes::mib(64)))?);
    let second = device.new_stream()?;
    let plain = device.allocate(Request::new(Bytes::mib(1)))?;
    device.write(plain.address(), &[7; 100])?;
    for packing in [Packing::Quick, Packing::Tight] {
        let pool = pool(Arc::clone(&device), packing);
        let mut blocks = Vec::new();
        for (round, mib) in [3u64, 5, 7, 2, 9].into_iter().enumerate() {
            let stream = if round % 2 == 0 { Stream::DEFAULT } else { second };
            blocks.push((pool.allocate(Request::new(Bytes::mib(mib)).on(stream))?, stream));
        }
        let last = blocks.pop();
        for (block, stream) in blocks {
            pool.release(block, stream)?;
        }
        // Nothing but moved pages has room for this.
        let large = pool.allocate(Request::new(Bytes::mib(30)).on(second))?;
        pool.release(large, second)?;
        pool.trim()?;
        if let Some((block, stream)) = last {
            pool.release(block, stream)?;
        }
        pool.clear()?;
    }
    let mut bytes = [0; 100];
    device.read(plain.address(), &mut bytes)?;
    assert_eq!(bytes, [7; 100], "what a program wrote has changed");
    device.release(plain, second)
}

/// Each call is let fail in turn, at each of its turns: nothing panics, the error names the
/// call or is a refusal of memory, and all memory is back when the program is over.
#[test]
fn an_error_from_any_call_costs_no_memory() {
    const CALLS: [&str; 22] = [
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetCurrent",
        "cuCtxPushCurrent_v2",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemcpyHtoD_v2",
        "cuMemcpyDtoH_v2",
        "cuStreamCreate",
        "cuStreamSynchronize",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
    ];
    for front in fronts("any_error", &[]) {
        program(&front).unwrap();
        let watcher = front.open();
        let free = watcher.facts().total.and_then(|_| watcher.free_memory().ok());
        for call in CALLS {
            let before = front.calls(call);
            program(&front).unwrap();
            let turns = front.calls(call) - before;
            assert!(turns > 0, "{call} is never made");
            let step = turns.div_ceil(5).max(1);
            for skip in (0..turns).step_by(step as usize) {
                {
                    // Out of memory where memory is asked for, elsewhere what is never expected.
                    let code = if skip % 2 == 0 && call.contains("Mem") { 2 } else { 999 };
                    front.fail(call, skip as i32, 1, code);
                    let ended = program(&front);
                    front.fail(call, 0, 0, 0);
                    if let Err(error) = ended {
                        assert_told(call, &error);
                    }
                    // Others use a real device, too.
                    let now = watcher.free_memory().ok();
                    assert!(front.is_real || now == free, "{call}, {skip}: {free:?}, {now:?}");
                }
            }
        }
    }
}

fn assert_told(call: &str, error: &Error) {
    let text = error.to_string();
    let told = match error {
        Error::Device { call: at, .. } => *at == call,
        Error::Unavailable { .. } => text.contains(call) || text.contains("CUDA"),
        error => error.is_out_of_memory(),
    };
    assert!(told, "{call}: {text}");
}

#[test]
fn events_that_are_not_over_are_waited_for() {
    for front in fronts("not_ready", &[]) {
        let device = front.open();
        let pool = pool(Arc::clone(&device), Packing::Quick);
        let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
        let block = pool.allocate(Request::new(Bytes::mib(8)).on(first)).unwrap();
        pool.release(block, first).unwrap();
        front.fail("cuEventQuery", 0, 1, 600);
        let waits = front.calls("cuStreamWaitEvent");
        let again = pool.allocate(Request::new(Bytes::mib(8)).on(second)).unwrap();
        assert!(front.calls("cuStreamWaitEvent") > waits || again.address() != block.address());
        pool.release(again, second).unwrap();
    }
}

/// A failure inside of work ends as an error of the call that found it.
#[test]
fn work_that_fails_is_told_by_the_next_who_asks() {
    for front in fronts("work_fails", &[]) {
        let device = front.open();
        let kernels = Kernels::new(&device, front.options());
        let block = device.allocate(Request::new(Bytes::mib(1))).unwrap();
        kernels.fill(Stream::DEFAULT, &block, 5);
        front.fail("cuStreamSynchronize", 0, 1, 700);
        let error = device.synchronize_stream(Stream::DEFAULT).unwrap_err();
        assert!(matches!(error, Error::Device { call: "cuStreamSynchronize", .. }), "{error}");
        assert!(error.to_string().contains("700"), "{error}");
        device.release(block, Stream::DEFAULT).unwrap();
    }
}
