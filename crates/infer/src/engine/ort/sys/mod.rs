//! The calls of ONNX Runtime that the crate `ort` does not wrap.

#![expect(unsafe_code, reason = "foreign calls; every block says why it is sound")]

pub(super) mod session_memory;

use std::ffi::{CStr, CString};
use std::path::Path;

use libloading::Library;
use ort::AsPointer;
use ort::memory::Allocator;
use ort::session::Session;
use ort::sys;
use ort::value::{TensorRef, TensorRefMut};

use crate::engine::EngineMemory;
use crate::engine::messages::loader_message;
use crate::tensor::Tensor;

/// The oldest version that has the interface we were built for.
pub(super) const OLDEST: u32 = ort::MINOR_VERSION;

/// The version of a library file, or why the file cannot be used. `ort` would panic on such a
/// file, so this check comes first.
pub(super) fn probe(path: &Path) -> Result<String, String> {
    // SAFETY: loading a library runs its initialisers. It is a file that the user named,
    // or one in a directory that only an administrator or the user writes to.
    let library = unsafe { Library::new(path) }.map_err(|error| loader_message(&error))?;
    // Never unloaded: its threads still run its code.
    let library = Box::leak(Box::new(library));
    // SAFETY: this is the signature that every release since 1.0 has under this name.
    let entry =
        unsafe { library.get::<unsafe extern "system" fn() -> *const sys::OrtApiBase>(ENTRY) }
            .map_err(|_| "it has no OrtGetApiBase".to_string())?;
    // SAFETY: the entry point takes nothing and returns a static table or null.
    let base = unsafe { entry().as_ref() }.ok_or("OrtGetApiBase returned null")?;
    // SAFETY: both members of the table are functions in every release.
    let (text, api) = unsafe { ((base.GetVersionString)(), (base.GetApi)(OLDEST)) };
    if text.is_null() {
        return Err("it reports no version".into());
    }
    // SAFETY: not null, and by its documentation a static, terminated string.
    let version = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // The number is checked as well: a library that is too old returns null, but a broken
    // one may not.
    let minor: Option<u32> = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    if !version.starts_with("1.") || minor.is_none_or(|minor| minor < OLDEST) || api.is_null() {
        return Err(format!("it is version {version}; 1.{OLDEST} or newer is needed"));
    }
    Ok(version)
}

const ENTRY: &[u8] = b"OrtGetApiBase\0";

/// Runs a session with the caller's own input and output buffers: nothing is copied, and
/// the runtime allocates no output. `ort`'s own run always returns fresh outputs.
///
/// The outputs must have the shapes that the model gives them, or the runtime refuses.
pub(super) fn run_in_place(
    session: &mut Session,
    names: &SessionNames,
    input: &Tensor,
    outputs: &mut [Tensor],
) -> ort::Result<()> {
    if outputs.len() != names.outputs.len() {
        return Err(ort::Error::new("as many outputs as names are needed"));
    }
    let input = TensorRef::from_array_view((&input.shape[..], &input.data[..]))?;
    let views = outputs
        .iter_mut()
        .map(|out| TensorRefMut::from_array_view_mut((&out.shape[..], &mut out.data[..])))
        .collect::<ort::Result<Vec<_>>>()?;
    let output_names: Vec<_> = names.outputs.iter().map(|name| name.as_ptr()).collect();
    let mut output_values: Vec<*mut sys::OrtValue> =
        views.iter().map(|view| view.ptr().cast_mut()).collect();
    let (input_name, input_value) = (names.input.as_ptr(), input.ptr());
    // SAFETY: session, names and values are alive until the end of this function; the
    // arrays have the lengths given; the outputs are exclusively borrowed, tell their own
    // sizes to the runtime, and are not replaced by it since they are not null.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            std::ptr::null(),
            &raw const input_name,
            &raw const input_value,
            1,
            output_names.as_ptr(),
            output_names.len(),
            output_values.as_mut_ptr(),
        )
    };
    // SAFETY: a status that the runtime just returned, and that nobody else frees.
    unsafe { ort::Error::result_from_status(status) }
}

/// The names of a model's input and outputs, as the runtime wants them.
#[derive(Debug)]
pub(super) struct SessionNames {
    input: CString,
    outputs: Vec<CString>,
}

impl SessionNames {
    /// `None` where a name has a zero byte in it.
    pub(super) fn new(session: &Session) -> Option<SessionNames> {
        let input = CString::new(session.inputs().first()?.name()).ok()?;
        let outputs = session
            .outputs()
            .iter()
            .map(|out| CString::new(out.name()).ok())
            .collect::<Option<_>>();
        Some(SessionNames { input, outputs: outputs? })
    }
}

/// The statistics of an arena; `None` where it keeps none.
pub(super) fn arena(allocator: &Allocator) -> Option<EngineMemory> {
    let api = ort::api();
    let mut pairs = std::ptr::null_mut();
    // SAFETY: the allocator is alive, and the place for the answer is ours.
    let status = unsafe { (api.AllocatorGetStats)(allocator.ptr(), &raw mut pairs) };
    // SAFETY: a status that the runtime just returned, and that nobody else frees.
    unsafe { ort::Error::result_from_status(status) }.ok()?;
    if pairs.is_null() {
        return None;
    }
    let read = |key: &CStr| -> Option<u64> {
        // SAFETY: the pairs are not null and not yet released; the key is terminated.
        let text = unsafe { (api.GetKeyValue)(pairs, key.as_ptr()) };
        if text.is_null() {
            return None;
        }
        // SAFETY: not null, terminated, and alive as long as the pairs.
        unsafe { CStr::from_ptr(text) }.to_str().ok()?.trim().parse().ok()
    };
    let memory = EngineMemory {
        in_use: read(c"InUse"),
        peak: read(c"MaxInUse"),
        reserved: read(c"TotalAllocated"),
        limit: read(c"Limit").filter(|&limit| limit < i64::MAX as u64),
    };
    // SAFETY: given to us by the call above, and used no more.
    unsafe { (api.ReleaseKeyValuePairs)(pairs) };
    // An allocator without an arena returns an empty list: unknown, not zero.
    (memory.in_use.is_some() || memory.peak.is_some()).then_some(memory)
}
