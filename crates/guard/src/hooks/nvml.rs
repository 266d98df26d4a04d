//! NVML: what it tells a program about memory is the limit, and the guard asks it what is used on
//! a device before there is a context.

use core::ffi::{CStr, c_int, c_uint};
use core::sync::atomic::Ordering::Relaxed;

use super::{DriverCode, OpaqueHandle, SUCCESS, devices};
use crate::attach::ProcessGuard;
use crate::intercept;
use crate::ledger::{DEVICES, NO_LIMIT, flag};

/// What nvmlDeviceGetMemoryInfo writes.
#[repr(C)]
#[derive(Default)]
pub(crate) struct NvmlMemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// What nvmlDeviceGetMemoryInfo_v2 writes.
#[repr(C)]
pub(crate) struct NvmlMemoryInfoV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// What a version of nvmlDeviceGetMemoryInfo writes.
pub(super) trait MemoryFigures {
    /// Total, used and free memory. What the driver reserved is set to 0: the guard counts it
    /// as used.
    fn figures(&mut self) -> [&mut u64; 3];
}

impl MemoryFigures for NvmlMemoryInfo {
    fn figures(&mut self) -> [&mut u64; 3] {
        [&mut self.total, &mut self.used, &mut self.free]
    }
}

impl MemoryFigures for NvmlMemoryInfoV2 {
    fn figures(&mut self) -> [&mut u64; 3] {
        self.reserved = 0;
        [&mut self.total, &mut self.used, &mut self.free]
    }
}

/// Room for a UUID as NVML writes it.
const UUID: usize = 96;

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const u8, *mut OpaqueHandle) -> c_int;
type GetUuid = unsafe extern "C" fn(OpaqueHandle, *mut u8, c_uint) -> c_int;
type GetMemory = unsafe extern "C" fn(OpaqueHandle, *mut NvmlMemoryInfo) -> c_int;
type GetProcesses = unsafe extern "C" fn(OpaqueHandle, *mut c_uint, *mut NvmlProcess) -> c_int;

/// What nvmlDeviceGetComputeRunningProcesses_v3 writes for each process.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NvmlProcess {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Where more processes than this use a device, the guard does not look for its own.
const PROCESSES: usize = 128;
/// NVML's value for a figure that it does not have.
const NOT_AVAILABLE: u64 = u64::MAX;

fn function(name: &CStr) -> usize {
    match intercept::library(c"libnvidia-ml.so.1", true) {
        0 => 0,
        library => intercept::symbol(library, name),
    }
}

/// What is used on the device with this UUID, by any process; `None` where NVML does not say.
pub(super) fn used(uuid: [u64; 2]) -> Option<u64> {
    with_device(uuid, c"nvmlDeviceGetMemoryInfo", |memory, device| {
        let mut info = NvmlMemoryInfo::default();
        // SAFETY: NVML's function, with the signature that it has always had.
        let code =
            unsafe { core::mem::transmute::<usize, GetMemory>(memory)(device, &raw mut info) };
        (code == 0).then_some(info.used)
    })
}

/// What this process uses of it: 0 where NVML does not list this process, `None` where NVML does
/// not say.
pub(super) fn used_by_this_process(uuid: [u64; 2]) -> Option<u64> {
    with_device(uuid, c"nvmlDeviceGetComputeRunningProcesses_v3", |processes, device| {
        let mut all = [NvmlProcess::default(); PROCESSES];
        let mut count = PROCESSES as c_uint;
        // SAFETY: NVML's function, with the signature of this version; `count` says how many
        // fit.
        let code = unsafe {
            core::mem::transmute::<usize, GetProcesses>(processes)(
                device,
                &raw mut count,
                all.as_mut_ptr(),
            )
        };
        let listed = all.get(..count as usize).filter(|_| code == 0)?;
        let me = crate::process::own_pid();
        let used = listed.iter().filter(|process| process.pid == me).map(|process| process.used);
        used.max().map_or(Some(0), |used| (used != NOT_AVAILABLE).then_some(used))
    })
}

/// Calls `ask` with the address of NVML's function of this name and NVML's handle of the device.
fn with_device<T>(
    uuid: [u64; 2],
    name: &CStr,
    ask: impl FnOnce(usize, OpaqueHandle) -> Option<T>,
) -> Option<T> {
    let names = [c"nvmlInit_v2", c"nvmlShutdown", c"nvmlDeviceGetHandleByUUID", name];
    let [init, shutdown, by_uuid, wanted] = names.map(function);
    if [init, shutdown, by_uuid, wanted].contains(&0) {
        return None;
    }
    let text = write_uuid(uuid);
    let mut device = core::ptr::null_mut();
    // SAFETY: these are NVML's functions, with the signatures that they have always had; what
    // they write has room, and the text ends with a zero.
    unsafe {
        if core::mem::transmute::<usize, Init>(init)() != 0 {
            return None;
        }
        let found =
            core::mem::transmute::<usize, ByUuid>(by_uuid)(text.as_ptr(), &raw mut device) == 0;
        let answer = if found { ask(wanted, device) } else { None };
        core::mem::transmute::<usize, Init>(shutdown)();
        answer
    }
}

/// `GPU-` and the sixteen bytes in five groups, as NVML writes it.
fn write_uuid(uuid: [u64; 2]) -> [u8; 41] {
    let mut text = [0; 41];
    text[..4].copy_from_slice(b"GPU-");
    let mut at = 4;
    let bytes = uuid.iter().flat_map(|word| word.to_le_bytes());
    for (index, byte) in bytes.enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text[at] = b'-';
            at += 1;
        }
        for half in [byte >> 4, byte & 15] {
            text[at] = b"0123456789abcdef"[usize::from(half)];
            at += 1;
        }
    }
    text
}

/// The opposite; `None` for a text that is not of this form.
fn read_uuid(text: &[u8]) -> Option<[u64; 2]> {
    let digits = text.strip_prefix(b"GPU-")?.iter().filter(|&&byte| byte != b'-');
    let mut bytes = [0u8; 16];
    let mut count = 0;
    for &digit in digits.take_while(|&&byte| byte != 0) {
        let value = (digit as char).to_digit(16)? as u8;
        *bytes.get_mut(count / 2)? |= value << (4 * (1 - count % 2));
        count += 1;
    }
    (count == 32).then(|| devices::uuid_words(bytes))
}

/// The limit of a device and what is charged there; `None` without a limit.
fn limit_and_charged(guard: &ProcessGuard, device: OpaqueHandle) -> Option<(u64, u64)> {
    let get = function(c"nvmlDeviceGetUUID");
    if get == 0 || guard.ledger.has_setting(flag::NVML_AS_IT_IS) {
        return None;
    }
    let mut text = [0; UUID];
    // SAFETY: NVML's function, with room for as much as `UUID` says.
    let code = unsafe {
        core::mem::transmute::<usize, GetUuid>(get)(device, text.as_mut_ptr(), UUID as c_uint)
    };
    let uuid = (code == 0).then(|| read_uuid(&text)).flatten();
    let known = uuid.and_then(|uuid| devices::of_uuid(guard, uuid));
    let (budget, used) = match known {
        Some(place) => {
            let device = &guard.ledger.devices[place];
            (device.budget.load(Relaxed), device.used.load(Relaxed))
        }
        None => (limit_when_used(guard, uuid), 0),
    };
    (budget != NO_LIMIT).then_some((budget, used))
}

/// The limit that a device will have once this process uses it. Until the driver has started it
/// cannot be told which of the process's numbers a device has: then it is the lowest limit of any,
/// so that no program plans with more than it gets.
fn limit_when_used(guard: &ProcessGuard, uuid: Option<[u64; 2]>) -> u64 {
    let limit = |number| guard.ledger.limit_of_number(number);
    let mut numbers = 0..DEVICES;
    let is_it = |uuid| move |number: &usize| devices::uuid_of(*number as c_int) == Some(uuid);
    let number = uuid.and_then(|uuid| numbers.find(is_it(uuid)));
    number.map_or_else(|| (0..=DEVICES).map(limit).min().unwrap_or(NO_LIMIT), limit)
}

/// # Safety
///
/// See [`super`]; `T` is what this version of NVML's function writes.
pub(super) unsafe fn memory_info<T: MemoryFigures>(
    guard: &ProcessGuard,
    device: OpaqueHandle,
    info: *mut T,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    // SAFETY: null, or what NVML has written.
    if let (SUCCESS, Some(info)) = (code, unsafe { info.as_mut() })
        && let Some((limit, charged)) = limit_and_charged(guard, device)
    {
        let [total, used, free] = info.figures();
        *total = (*total).min(limit);
        *used = charged.min(*total);
        *free = (*free).min(*total - *used);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_it_is_read() {
        let text = b"GPU-2f1c9e7a-0b3d-4c5e-8f90-a1b2c3d4e5f6\0";
        let uuid = read_uuid(text).unwrap();
        assert_eq!(&write_uuid(uuid), text);
        assert_eq!(read_uuid(b"MIG-2f1c9e7a"), None);
        assert_eq!(read_uuid(b"GPU-2f1c9e7"), None);
        assert_eq!(read_uuid(b"GPU-zz"), None);
    }
}
