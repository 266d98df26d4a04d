//! OpenCL, beyond what every memory promises: its own total, parts of buffers, real queues,
//! and machines on which it is missing or broken.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    unsafe_code,
    reason = "a test fails by panicking, and holds queues back by foreign calls"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cl3::{command_queue, event};
use plimsoll_memory::backend::opencl::{OpenCl, count};
use plimsoll_memory::{
    Bytes, Device, Error, Memory, MemoryConfig, Pool, Request, Stream, select_backend_for_model,
};

/// The first device, or nothing and a word about it.
fn device(total: Bytes) -> Option<OpenCl> {
    match OpenCl::with_total(0, total) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            assert!(!required.contains("opencl"), "required: {error}");
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn the_sum_is_counted_here_as_the_driver_does_not() {
    let Some(device) = device(Bytes::mib(16)) else { return };
    let take = || device.allocate(Request::new(Bytes::mib(1)));
    let blocks: Vec<_> = (0..16).map(|_| take().unwrap()).collect();
    let refused = take().unwrap_err();
    assert!(refused.is_full_now(), "{refused}");
    assert_eq!(device.stats().total_allocated_bytes, Bytes::mib(16));
    for block in blocks {
        device.release(block, Stream::DEFAULT).unwrap();
    }
    assert_eq!(device.available(), Bytes::mib(16));
}

#[test]
fn a_buffer_past_the_single_maximum_can_never_fit() {
    let Some(device) = device(Bytes::MAX) else { return };
    let largest = device.largest_buffer();
    assert!(largest <= device.capacity() && largest > Bytes::ZERO);
    match device.allocate(Request::new(Bytes(largest.0 + 1))) {
        Err(Error::NeverFits { capacity, .. }) => assert_eq!(capacity, largest),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
}

#[test]
fn a_view_is_a_block_and_nothing_beside_it() {
    let Some(device) = device(Bytes::mib(64)) else { return };
    let device = Arc::new(device);
    let pool = Pool::new(
        Arc::clone(&device) as Arc<dyn Memory>,
        MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0),
    )
    .unwrap();
    let blocks: Vec<_> = (0..3).map(|_| pool.allocate(Request::new(5000u64)).unwrap()).collect();
    for block in &blocks {
        device.write(block.address(), &[7; 5000]).unwrap();
    }
    let view = device.view(blocks[1].address(), blocks[1].size()).unwrap();
    let queue = device.raw_queue(Stream::DEFAULT).unwrap();
    let pattern = 9u8;
    // SAFETY: queue and view are live, and 5000 bytes is the size of the view.
    let filled = unsafe {
        command_queue::enqueue_fill_buffer(
            queue,
            view.raw(),
            (&raw const pattern).cast(),
            1,
            0,
            5000,
            0,
            std::ptr::null(),
        )
    };
    event::wait_for_events(&[filled.unwrap()]).unwrap();
    for (block, byte) in blocks.iter().zip([7, 9, 7]) {
        let mut bytes = [0; 5000];
        device.read(block.address(), &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == byte), "{block:?}");
    }
    assert!(device.view(blocks[0].address().plus(1 << 40), Bytes(1)).is_err());
}

#[test]
fn a_stream_waits_for_another() {
    let Some(device) = device(Bytes::mib(16)) else { return };
    let (first, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    // A gate that the test opens: what is queued behind it cannot be done.
    let gate = event::create_user_event(device.raw_context()).unwrap();
    let queue = device.raw_queue(first).unwrap();
    // SAFETY: the queue and the one event are live.
    unsafe { command_queue::enqueue_barrier_with_wait_list(queue, 1, &raw const gate) }.unwrap();
    let held = device.record(first).unwrap();
    device.wait(second, held).unwrap();
    let behind = device.record(second).unwrap();
    assert!(!device.is_done(held).unwrap() && !device.is_done(behind).unwrap());
    assert!(device.is_done(device.record(Stream::DEFAULT).unwrap()).is_ok());
    event::set_user_event_status(gate, 0).unwrap();
    device.synchronize(behind).unwrap();
    assert!(device.is_done(held).unwrap() && device.is_done(behind).unwrap());
    device.forget(held).unwrap();
    assert!(device.is_done(held).is_err(), "a forgotten event is no event");
    assert!(device.record(Stream(999)).is_err());
}

#[test]
fn what_is_free_is_asked_and_not_made_up() {
    let Some(device) = device(Bytes::MAX) else { return };
    println!("{device}: {:?} free of {}", device.free_memory(), device.capacity());
    if let Ok(free) = device.free_memory() {
        assert!(free > Bytes::ZERO && free <= device.capacity());
    }
    let error = OpenCl::open(4096).unwrap_err().to_string();
    assert!(error.contains("opencl:4096") && error.contains("counted from 0"), "{error}");
}

const CHILD: &str = "PLIMSOLL_TEST_OPENCL_CHILD";

/// Says what it finds; does something only in a process that a test below has started.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("count: {:?}", count());
        println!("select: {:?}", select_backend_for_model(Bytes::mib(1)));
    }
}

fn in_a_child(change: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "child"]).env(CHILD, "1");
    command.env_remove("OPENCL_DYLIB_PATH");
    change(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn folder(name: &str) -> PathBuf {
    // The build's own folder, or the system's where the test was carried elsewhere.
    let own = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let own = if own.is_dir() { own.to_path_buf() } else { std::env::temp_dir() };
    let folder = own.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_driver_the_reason_is_said() {
    if let Err(error) = count()
        && error.to_string().contains("could not be loaded")
    {
        println!("skipped: {error}");
        return;
    }
    let none = folder("no-opencl-drivers");
    let text = in_a_child(|child| {
        child.env("OCL_ICD_VENDORS", &none);
    });
    assert!(text.contains("no driver is registered"), "{text}");
    assert!(text.contains("OCL_ICD_VENDORS") && text.contains("pocl-opencl-icd"), "{text}");
    assert!(text.contains("select: Ok"), "the host is still there: {text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_broken_or_empty_library_is_no_panic() {
    let broken = folder("broken-opencl");
    std::fs::write(broken.join("libOpenCL.so.1"), "").unwrap();
    let text = in_a_child(|child| {
        child.env("LD_LIBRARY_PATH", &broken);
    });
    assert!(text.contains("libOpenCL.so.1 ") && text.contains("could not be loaded"), "{text}");

    let empty = folder("empty-opencl");
    let source = empty.join("empty.c");
    std::fs::write(&source, "int nothing_of_opencl;\n").unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&empty.join("libOpenCL.so.1"), &source])
        .status()
        .unwrap();
    assert!(built.success());
    let text = in_a_child(|child| {
        child.env("LD_LIBRARY_PATH", &empty);
    });
    assert!(text.contains("clGetPlatformIDs"), "{text}");
}
