//! Memory as large as a cloud or a result: had, or an error, without taking the process down.

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;
use plimsoll_machine::platform;
use plimsoll_memory::{Bytes, Error, Result};

/// So many zeros. Nothing is written: the system gives pages of zeros to whoever touches them first.
pub(crate) fn zeroed<T: Zeroable>(length: usize) -> Result<Vec<T>> {
    try_zeroed_vec(length).map_err(|()| refused(bytes_of::<T>(length)))
}

/// As long as that, new ones being 0.
pub(crate) fn resize<T: Zeroable + Copy>(list: &mut Vec<T>, length: usize) -> Result<()> {
    if list.is_empty() && length > list.capacity() {
        *list = zeroed(length)?;
        return Ok(());
    }
    reserve(list, length.saturating_sub(list.len()))?;
    list.resize(length, T::zeroed());
    Ok(())
}

/// As long as that, without what a list that grows by itself takes for later; new ones have a value.
pub(crate) fn fit_length<T>(
    list: &mut Vec<T>,
    length: usize,
    value: impl FnMut() -> T,
) -> Result<()> {
    if list.capacity() < length {
        empty_for(list, length)?;
    }
    list.resize_with(length, value);
    Ok(())
}

/// Empty, with room for so many.
pub(crate) fn empty_for<T>(list: &mut Vec<T>, length: usize) -> Result<()> {
    list.clear();
    if list.capacity() < length {
        // Not two of them at once.
        *list = Vec::new();
        list.try_reserve_exact(length).map_err(|_| refused(bytes_of::<T>(length)))?;
    }
    Ok(())
}

/// Without what a list holds, where that is more than so many take.
pub(crate) fn forget_larger<T>(list: &mut Vec<T>, length: usize) {
    if list.capacity() > length {
        *list = Vec::new();
    }
}

/// Room for more.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| refused(bytes_of::<T>(more)))
}

fn bytes_of<T>(length: usize) -> u64 {
    (length as u64).saturating_mul(size_of::<T>() as u64)
}

/// The host has no room for this many bytes.
pub(crate) fn refused(bytes: u64) -> Error {
    Error::OutOfMemory {
        memory: "host".to_string(),
        requested: Bytes(bytes),
        available: left_on_host().unwrap_or_default(),
    }
}

/// What the system has left for this process, or what its control group or limits leave.
pub(crate) fn left_on_host() -> Option<Bytes> {
    let root = std::path::Path::new("/");
    let free = platform::system_memory(root).ok().and_then(|memory| memory.available);
    platform::memory_left(root).into_iter().chain(free).min()
}
