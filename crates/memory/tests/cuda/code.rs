//! Compiled code and graphs.

use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Code, compile};
use plimsoll_memory::{Bytes, Device, Error, Memory, MemoryConfig, Pool, Request, Stream};

use crate::front::{Kernels, fronts};

#[test]
fn functions_are_found_and_launched() {
    for front in fronts("launch", &[]) {
        let device = front.open();
        let kernels = Kernels::new(&device, front.options());
        let stream = device.new_stream().unwrap();
        let block = device.allocate(Request::new(Bytes::mib(3)).on(stream)).unwrap();
        kernels.fill(stream, &block, 0x0102_0304);
        kernels.check(stream, &block, 0x0102_0304);
        let mut word = [0; 4];
        device.read_on(stream, block.address().plus((3 << 20) - 4), &mut word).unwrap();
        assert_eq!((word, kernels.errors()), ([4, 3, 2, 1], 0));
        // And it finds what is wrong.
        device.write_on(stream, block.address().plus(4096), &[0; 8]).unwrap();
        kernels.check(stream, &block, 0x0102_0304);
        device.synchronize_stream(stream).unwrap();
        assert_eq!(kernels.errors(), 2);
        device.release(block, stream).unwrap();
    }
}

#[test]
fn wrong_code_and_wrong_names_are_errors() {
    for front in fronts("wrong_code", &[]) {
        let device = front.open();
        let error = device.load(&Code::ptx("this is no code")).unwrap_err();
        assert!(matches!(error, Error::Device { call: "cuModuleLoadData", .. }), "{error}");
        let module = device.load(&Code::ptx(include_str!("../fake/kernels.ptx"))).unwrap();
        for name in ["none", "fi\0ll", ""] {
            let error = module.function(name).unwrap_err();
            assert!(matches!(error, Error::Device { call: "cuModuleGetFunction", .. }), "{error}");
        }
    }
}

/// With NVRTC a source is compiled and runs; without, the files that were tried are named.
#[test]
fn a_source_is_compiled_or_the_lack_of_a_compiler_told() {
    let source = "extern \"C\" __global__ void one(int *x) { *x = 1; }";
    match compile(source, "compute_75", &[]) {
        Ok(code) => {
            assert!(String::from_utf8_lossy(code.bytes()).contains(".entry one"));
            let error = compile("this is no source", "compute_75", &[]).unwrap_err().to_string();
            assert!(error.contains("nvrtcCompileProgram") && error.contains("error"), "{error}");
        }
        Err(error @ Error::Unavailable { .. }) => {
            println!("skipped: {error}");
            assert!(error.to_string().contains("libnvrtc.so"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// A graph is captured on memory of the pool's, the pool is trimmed and used by others, and
/// the graph still finds its addresses.
#[test]
fn a_graph_is_replayed_after_the_pool_was_trimmed() {
    for front in fronts("graph", &[]) {
        let device = front.open();
        let kernels = Kernels::new(&device, front.options());
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        let pool = Arc::new(Pool::new(device.clone() as Arc<dyn Memory>, config).unwrap());
        let stream = device.new_stream().unwrap();
        let other = pool.allocate(Request::new(Bytes::mib(20))).unwrap();

        let capture = pool.begin_capture(stream, Bytes::mib(16)).unwrap();
        let graph = device.begin_graph(stream).unwrap();
        let first = pool.allocate(Request::new(Bytes::mib(6)).on(stream)).unwrap();
        let second = pool.allocate(Request::new(Bytes::mib(6)).on(stream)).unwrap();
        kernels.fill(stream, &first, 11);
        kernels.fill(stream, &second, 22);
        kernels.check(stream, &first, 11);
        kernels.check(stream, &second, 22);
        pool.release(second, stream).unwrap();
        let third = pool.allocate(Request::new(Bytes::mib(6)).on(stream)).unwrap();
        kernels.fill(stream, &third, 33);
        kernels.check(stream, &third, 33);
        kernels.check(stream, &first, 11);
        let graph = graph.end().unwrap();
        let memory = capture.end();

        pool.release(other, Stream::DEFAULT).unwrap();
        let rounds = if front.is_real { 20 } else { 3 };
        for round in 0..rounds {
            assert!(round > 0 || pool.trim().unwrap() > Bytes::ZERO);
            // Others take and use all that the graph does not hold.
            let mib = 200 - 7 * (round % 3);
            let block = pool.allocate(Request::new(Bytes::mib(mib))).unwrap();
            kernels.fill(Stream::DEFAULT, &block, 99);
            graph.launch(stream).unwrap();
            kernels.check(Stream::DEFAULT, &block, 99);
            pool.release(block, Stream::DEFAULT).unwrap();
            pool.trim().unwrap();
            graph.launch(stream).unwrap();
        }
        device.synchronize_stream(stream).unwrap();
        device.synchronize_stream(Stream::DEFAULT).unwrap();
        assert_eq!(kernels.errors(), 0);
        assert!(memory.held() >= Bytes::mib(16));
        drop((graph, memory));
        for block in [first, third] {
            pool.release(block, stream).unwrap();
        }
        pool.clear().unwrap();
        assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
    }
}
