//! An engine that was opened: its tensors, and a run.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use super::table::{RawTensor, ShimTable};
use super::{ShimBudget, reporting};
use crate::engine::cuda::sys::buffer::DeviceFloats;
use crate::engine::cuda::sys::gpu::EngineGpu;

/// A tensor of an engine.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct EngineTensor {
    pub(in super::super) name: String,
    pub(in super::super) is_input: bool,
    /// TensorRT's number for the type of its elements.
    pub(in super::super) element: i32,
    /// -1 where an extent is not fixed.
    pub(in super::super) shape: Vec<i64>,
}

impl EngineTensor {
    /// Bytes of one element.
    fn width(&self) -> usize {
        match self.element {
            0 | 3 => 4,
            1 | 7 => 2,
            8 => 8,
            _ => 1,
        }
    }

    /// How many elements it has, where every extent is fixed.
    pub(in super::super) fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |all, &extent| {
            all.checked_mul(usize::try_from(extent).ok().filter(|&extent| extent > 0)?)
        })
    }

    fn bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.width())
    }
}

/// The host memory that a tensor's numbers are copied from or to.
pub(in super::super) enum TensorBuffer<'a> {
    /// An input of f32.
    In(&'a [f32]),
    /// An output of f32.
    Out(&'a mut [f32]),
    /// Either, of another type.
    Raw(&'a mut [u8]),
    /// Nowhere: they are on the device already, or stay there.
    OnDevice,
}

impl TensorBuffer<'_> {
    fn fits(&self, bytes: usize) -> bool {
        match self {
            TensorBuffer::In(data) => size_of_val(*data) == bytes,
            TensorBuffer::Out(data) => size_of_val(*data) == bytes,
            TensorBuffer::Raw(data) => data.len() == bytes,
            TensorBuffer::OnDevice => true,
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        match self {
            TensorBuffer::In(data) => data.as_ptr().cast_mut().cast(),
            TensorBuffer::Out(data) => data.as_mut_ptr().cast(),
            TensorBuffer::Raw(data) => data.as_mut_ptr().cast(),
            TensorBuffer::OnDevice => std::ptr::null_mut(),
        }
    }
}

/// An engine that was opened.
#[derive(Debug)]
pub(in super::super) struct Session {
    pub(super) table: ShimTable,
    pub(super) engine: *mut c_void,
    /// Bytes of every tensor; none before it is prepared.
    pub(super) sizes: Vec<usize>,
    // Behind the engine, which uses both until it is closed.
    pub(super) _gpu: Option<Arc<EngineGpu>>,
    pub(super) _budget: Arc<ShimBudget>,
}

// SAFETY: the shim makes its context current at the start of every call, and a session is
// used by one thread at a time, as its methods that change it take `&mut self`.
unsafe impl Send for Session {}

impl Session {
    /// Its inputs and outputs.
    pub(in super::super) fn tensors(&self) -> Result<Vec<EngineTensor>, String> {
        // SAFETY: the engine is open.
        let count = unsafe { (self.table.tensors)(self.engine) };
        (0..count).map(|index| self.tensor(index)).collect()
    }

    fn tensor(&self, index: i32) -> Result<EngineTensor, String> {
        let mut raw =
            RawTensor { name: std::ptr::null(), is_input: 0, element: 0, rank: 0, dims: [0; 8] };
        reporting(|(why, room)| {
            // SAFETY: the engine is open, the place is ours, the index is within the count.
            unsafe { (self.table.tensor)(self.engine, index, &raw mut raw, why, room) }
        })?;
        if raw.name.is_null() {
            return Err("a tensor without a name".into());
        }
        // SAFETY: not null, terminated, and kept by the engine.
        let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
        let rank = usize::try_from(raw.rank).unwrap_or(0).min(8);
        let shape = raw.dims[..rank].to_vec();
        Ok(EngineTensor { name, is_input: raw.is_input != 0, element: raw.element, shape })
    }

    /// Sets the shape of an input.
    pub(in super::super) fn set_shape(
        &mut self,
        index: usize,
        shape: &[i64],
    ) -> Result<(), String> {
        let (index, rank) = (index as i32, shape.len().min(8) as i32);
        reporting(|(why, room)| {
            // SAFETY: the engine is open; so many extents are there.
            unsafe { (self.table.shape)(self.engine, index, rank, shape.as_ptr(), why, room) }
        })
    }

    /// Allocates memory, and captures a run where that was asked for.
    pub(in super::super) fn prepare(&mut self) -> Result<(), String> {
        // SAFETY: the engine is open.
        reporting(|(why, room)| unsafe { (self.table.prepare)(self.engine, why, room) })?;
        let sizes = self.tensors()?.iter().map(EngineTensor::bytes).collect::<Option<Vec<usize>>>();
        self.sizes = sizes.ok_or("a tensor whose size is not fixed")?;
        Ok(())
    }

    /// Where the numbers of a tensor of f32 lie on the device, once it is prepared.
    pub(in super::super) fn floats(&self, index: usize) -> Option<DeviceFloats> {
        let bytes = *self.sizes.get(index)?;
        // SAFETY: the engine is open.
        let start = unsafe { (self.table.device)(self.engine, index as i32) };
        // SAFETY: the shim allocated so many bytes there for the tensor, until the engine is
        // closed; it uses them only in runs, which are on the same stream.
        (start != 0).then(|| unsafe { DeviceFloats::new(start, bytes / size_of::<f32>()) })
    }

    /// Runs, with a buffer for every tensor in their order, lets `then` queue more work, and
    /// waits for all.
    pub(in super::super) fn run(
        &mut self,
        buffers: &mut [TensorBuffer<'_>],
        then: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let fit = buffers.iter().zip(&self.sizes).all(|(buffer, &size)| buffer.fits(size));
        if buffers.len() != self.sizes.len() || !fit {
            return Err("a buffer has another size than its tensor".into());
        }
        let hosts: Vec<*mut c_void> = buffers.iter_mut().map(TensorBuffer::pointer).collect();
        let ran = reporting(|(why, room)| {
            // SAFETY: the engine is open and was prepared; every buffer is as large as its
            // tensor, or null, and alive until all was waited for below; the shim reads those
            // of inputs and writes the others, which are borrowed exclusively.
            unsafe { (self.table.run)(self.engine, hosts.as_ptr(), why, room) }
        });
        let ran = ran.and_then(|()| then());
        // Whatever happened, no copy may be under way when the borrows end.
        // SAFETY: the engine is open.
        let waited = reporting(|(why, room)| unsafe { (self.table.wait)(self.engine, why, room) });
        ran.and(waited)
    }

    /// Whether a captured graph is replayed.
    pub(in super::super) fn has_graph(&self) -> bool {
        // SAFETY: the engine is open.
        unsafe { (self.table.has_graph)(self.engine) != 0 }
    }

    /// Bytes of scratch memory.
    pub(in super::super) fn scratch(&self) -> u64 {
        // SAFETY: the engine is open.
        unsafe { (self.table.scratch)(self.engine) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; the budget is dropped after this.
        unsafe { (self.table.close)(self.engine) };
    }
}
