//! An engine that was opened: its tensors, and a run.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use super::table::{RawTensor, Table};
use super::told;
use crate::engine::cuda::Ledger;
use crate::engine::cuda::sys::driver::Stream;
use crate::engine::cuda::sys::pinned::Place;

/// A tensor of an engine.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Tensor {
    pub(in super::super) name: String,
    pub(in super::super) is_input: bool,
    /// TensorRT's number for the type of its elements.
    pub(in super::super) element: i32,
    /// -1 where an extent is not fixed.
    pub(in super::super) shape: Vec<i64>,
}

impl Tensor {
    /// Bytes of one element.
    fn width(&self) -> usize {
        match self.element {
            0 | 3 => 4,
            1 | 7 => 2,
            8 => 8,
            _ => 1,
        }
    }

    /// Elements, where every extent is settled.
    pub(in super::super) fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |all, &extent| {
            all.checked_mul(usize::try_from(extent).ok().filter(|&extent| extent > 0)?)
        })
    }

    fn bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.width())
    }
}

/// Where a tensor's numbers come from or go to.
pub(in super::super) enum Buffer<'a> {
    /// An input of f32.
    In(&'a [f32]),
    /// An output of f32.
    Out(&'a mut [f32]),
    /// Either, of another type.
    Raw(&'a mut [u8]),
    /// Nowhere: they are on the device already, or stay there.
    There,
}

impl Buffer<'_> {
    fn fits(&self, bytes: usize) -> bool {
        match self {
            Buffer::In(data) => size_of_val(*data) == bytes,
            Buffer::Out(data) => size_of_val(*data) == bytes,
            Buffer::Raw(data) => data.len() == bytes,
            Buffer::There => true,
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        match self {
            Buffer::In(data) => data.as_ptr().cast_mut().cast(),
            Buffer::Out(data) => data.as_mut_ptr().cast(),
            Buffer::Raw(data) => data.as_mut_ptr().cast(),
            Buffer::There => std::ptr::null_mut(),
        }
    }
}

/// An engine that was opened.
#[derive(Debug)]
pub(in super::super) struct Session {
    pub(super) table: Table,
    pub(super) engine: *mut c_void,
    /// Bytes of every tensor; none before it is prepared.
    pub(super) sizes: Vec<usize>,
    // Behind the engine, which works on the one and asks the other until it is closed.
    pub(super) _stream: Option<Arc<Stream>>,
    pub(super) _ledger: Arc<Ledger>,
}

// SAFETY: the shim makes its context current at the start of every call, and a session is
// used by one thread at a time, as its methods that change it take `&mut self`.
unsafe impl Send for Session {}

impl Session {
    /// Its inputs and outputs.
    pub(in super::super) fn tensors(&self) -> Result<Vec<Tensor>, String> {
        // SAFETY: the engine is open.
        let count = unsafe { (self.table.tensors)(self.engine) };
        (0..count).map(|index| self.tensor(index)).collect()
    }

    fn tensor(&self, index: i32) -> Result<Tensor, String> {
        let mut raw =
            RawTensor { name: std::ptr::null(), is_input: 0, element: 0, rank: 0, dims: [0; 8] };
        told(|(why, room)| {
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
        Ok(Tensor { name, is_input: raw.is_input != 0, element: raw.element, shape })
    }

    /// Settles the shape of an input.
    pub(in super::super) fn set_shape(
        &mut self,
        index: usize,
        shape: &[i64],
    ) -> Result<(), String> {
        let (index, rank) = (index as i32, shape.len().min(8) as i32);
        told(|(why, room)| {
            // SAFETY: the engine is open; so many extents are there.
            unsafe { (self.table.shape)(self.engine, index, rank, shape.as_ptr(), why, room) }
        })
    }

    /// Takes memory, and records a run where that was asked for.
    pub(in super::super) fn prepare(&mut self) -> Result<(), String> {
        // SAFETY: the engine is open.
        told(|(why, room)| unsafe { (self.table.prepare)(self.engine, why, room) })?;
        let sizes = self.tensors()?.iter().map(Tensor::bytes).collect::<Option<Vec<usize>>>();
        self.sizes = sizes.ok_or("a tensor whose size is not settled")?;
        Ok(())
    }

    /// Where the numbers of a tensor of f32 lie on the device, once it is prepared.
    pub(in super::super) fn place(&self, index: usize) -> Option<Place> {
        let bytes = *self.sizes.get(index)?;
        // SAFETY: the engine is open.
        let start = unsafe { (self.table.device)(self.engine, index as i32) };
        // SAFETY: the shim took so many bytes there for the tensor, until the engine is closed;
        // it touches them only in runs, which are on the same stream.
        (start != 0).then(|| unsafe { Place::new(start, bytes / size_of::<f32>()) })
    }

    /// Runs, with a buffer for every tensor in their order, lets `then` put more behind that,
    /// and waits for all.
    pub(in super::super) fn run(
        &mut self,
        buffers: &mut [Buffer<'_>],
        then: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let fit = buffers.iter().zip(&self.sizes).all(|(buffer, &size)| buffer.fits(size));
        if buffers.len() != self.sizes.len() || !fit {
            return Err("a buffer has another size than its tensor".into());
        }
        let hosts: Vec<*mut c_void> = buffers.iter_mut().map(Buffer::pointer).collect();
        let ran = told(|(why, room)| {
            // SAFETY: the engine is open and was prepared; every buffer is as large as its
            // tensor, or null, and alive until all was waited for below; the shim reads those
            // of inputs and writes the others, which are borrowed exclusively.
            unsafe { (self.table.run)(self.engine, hosts.as_ptr(), why, room) }
        });
        let ran = ran.and_then(|()| then());
        // Whatever happened, nothing may be in flight when the borrows end.
        // SAFETY: the engine is open.
        let waited = told(|(why, room)| unsafe { (self.table.wait)(self.engine, why, room) });
        ran.and(waited)
    }

    /// Whether a recorded run is replayed.
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
        // SAFETY: opened once, closed once; the ledger goes after this.
        unsafe { (self.table.close)(self.engine) };
    }
}
