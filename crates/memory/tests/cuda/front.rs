//! The drivers that a test runs on, with knobs, and kernels that tell whose a block is.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_memory::backend::cuda::{
    Argument, Code, Cuda, CudaMemory, CudaOptions, Function, Launch, count,
};
use plimsoll_memory::{Address, Block, Bytes, Memory, Request, Stream};

use crate::fake;

/// A driver with knobs: a pretence, or a front of the real one.
pub(crate) struct Front {
    pub(crate) is_real: bool,
    pub(crate) library: PathBuf,
    _device: Option<RwLockReadGuard<'static, ()>>,
}

/// Tests share the real device, but for those that fill it or keep kernels at work on it: a call of another
/// test could wait for such a kernel with the driver's lock in its hands.
static DEVICE: RwLock<()> = RwLock::new(());

/// What the knobs are called with: skip this many calls, fail this many, with this code.
type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
type Calls = unsafe extern "C" fn(*const c_char) -> c_uint;

/// Every driver that a test runs on. The name gives each test a driver of its own, since
/// knobs are shared by all who use it.
pub(crate) fn fronts(test: &str, flags: &[&str]) -> Vec<Front> {
    let own = format!("-DTEST_{test}");
    let with = |more: &[&str]| fake::cuda(&[&[own.as_str()], flags, more].concat());
    let mut all = vec![Front { is_real: false, library: with(&[]), _device: None }];
    if let Some(device) = real_device() {
        all.push(Front { is_real: true, library: with(&["-DREAL"]), _device: Some(device) });
    }
    all
}

/// The real device, shared with other tests; says so where there is none.
fn real_device() -> Option<RwLockReadGuard<'static, ()>> {
    is_real_here().then(|| DEVICE.read().unwrap_or_else(PoisonError::into_inner))
}

/// The real device for one test alone.
pub(crate) fn whole_real_device() -> Option<RwLockWriteGuard<'static, ()>> {
    is_real_here().then(|| DEVICE.write().unwrap_or_else(PoisonError::into_inner))
}

fn is_real_here() -> bool {
    match count() {
        Ok(_) => true,
        Err(error) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            assert!(!required.contains("cuda"), "required: {error}");
            println!("skipped on the real driver: {error}");
            false
        }
    }
}

impl Front {
    pub(crate) fn options(&self) -> CudaOptions {
        CudaOptions::new(0).library(&self.library)
    }

    /// A device of 256 MiB.
    pub(crate) fn open(&self) -> Arc<Cuda> {
        Arc::new(Cuda::open_with(&self.options().total(Bytes::mib(256))).unwrap())
    }

    /// The library, kept loaded: its knobs are its own variables.
    fn knobs(&self) -> &'static libloading::Library {
        // SAFETY: the library is ours and does nothing when it is loaded.
        let library = unsafe { libloading::Library::new(&self.library) }.unwrap();
        Box::leak(Box::new(library))
    }

    /// Lets calls of this name fail: after `skip` more, this many times, with this code.
    pub(crate) fn fail(&self, call: &str, skip: i32, times: i32, code: i32) {
        let name = CString::new(call).unwrap();
        // SAFETY: the library is ours, the types are those of its source, and the name is
        // copied.
        unsafe {
            let library = self.knobs();
            let fail: libloading::Symbol<'_, Fail> = library.get(b"fake_fail").unwrap();
            fail(name.as_ptr(), skip, times, code);
        }
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, call: &str) -> u32 {
        let name = CString::new(call).unwrap();
        // SAFETY: as in `fail`.
        unsafe {
            let library = self.knobs();
            let calls: libloading::Symbol<'_, Calls> = library.get(b"fake_calls").unwrap();
            calls(name.as_ptr())
        }
    }
}

/// The kernels, loaded on a device, with a place for errors and a flag that host and device
/// both see.
pub(crate) struct Kernels {
    fill: Function,
    check: Function,
    hold: Function,
    /// Words that both sides see: errors, and a flag; kept by the device that they lie on.
    words: Block,
    _pinned: Cuda,
}

impl Kernels {
    pub(crate) fn new(device: &Cuda, options: CudaOptions) -> Kernels {
        let module = device.load(&Code::ptx(include_str!("../fake/kernels.ptx"))).unwrap();
        let pinned = Cuda::open_with(&options.memory(CudaMemory::Pinned)).unwrap();
        let words = pinned.allocate(Request::new(256u64)).unwrap();
        let function = |name| module.function(name).unwrap();
        let kernels = Kernels {
            fill: function("fill"),
            check: function("check"),
            hold: function("hold"),
            words,
            _pinned: pinned,
        };
        kernels.reset();
        kernels
    }

    fn errors_at(&self) -> Address {
        self.words.address()
    }

    fn flag_at(&self) -> Address {
        self.words.address().plus(128)
    }

    /// The words as both sides see them, without a call to the driver, which could wait.
    fn word(&self, at: Address) -> &std::sync::atomic::AtomicU32 {
        // SAFETY: pinned memory that lives as long as this value, aligned, and touched by
        // single words alone.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(at.pointer() as *mut u32) }
    }

    pub(crate) fn reset(&self) {
        self.word(self.errors_at()).store(0, std::sync::atomic::Ordering::SeqCst);
        self.word(self.flag_at()).store(0, std::sync::atomic::Ordering::SeqCst);
    }

    /// How many words were found that somebody else had written.
    pub(crate) fn errors(&self) -> u32 {
        self.word(self.errors_at()).load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Lets kernels go that hold.
    pub(crate) fn let_go(&self) {
        self.word(self.flag_at()).store(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn launch(&self, function: &Function, stream: Stream, block: &Block, more: &[Argument]) {
        let words = u32::try_from(block.size().get() / 4).unwrap();
        let head = [Argument::from(block.address()), words.into()];
        let launch = Launch::over(words.min(64 << 10), 256);
        // SAFETY: the arguments are those of the kernels' source, and the block is as long
        // as they say; tests that return it meanwhile do so to see what happens.
        unsafe { function.launch(stream, launch, &[&head[..], more].concat()) }.unwrap();
    }

    /// Queues: fill the block with a value.
    pub(crate) fn fill(&self, stream: Stream, block: &Block, value: u32) {
        self.launch(&self.fill, stream, block, &[value.into()]);
    }

    /// Queues: count the words that do not have the value.
    pub(crate) fn check(&self, stream: Stream, block: &Block, value: u32) {
        self.launch(&self.check, stream, block, &[value.into(), self.errors_at().into()]);
    }

    /// Queues: go on checking until let go. One thread block, so that others can run.
    pub(crate) fn hold(&self, stream: Stream, block: &Block, value: u32) {
        let words = u32::try_from(block.size().get() / 4).unwrap();
        let arguments = [
            block.address().into(),
            words.into(),
            value.into(),
            self.errors_at().into(),
            self.flag_at().into(),
        ];
        let launch = Launch { grid: [1, 1, 1], block: [256, 1, 1], shared: 0 };
        // SAFETY: as in `launch`.
        unsafe { self.hold.launch(stream, launch, &arguments) }.unwrap();
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // A failed test must not leave a kernel that never ends.
        self.let_go();
    }
}
