//! Memory of graphs. Allocation nodes take memory when the graph is launched, from a reservation
//! that the device keeps for all graphs.
//!
//! When a graph is instantiated, the guard adds up its allocation nodes. Before a launch it
//! charges that sum; after the launch the charge becomes what the driver reports to have reserved
//! for graphs. A launch that might not fit is refused.

use core::ffi::{c_int, c_void};

use super::{DriverCode, OUT_OF_MEMORY, OpaqueHandle, SUCCESS, own_calls};
use super::{devices, kernels, measure};
use crate::attach::{POOL_LOCKS, ProcessGuard};
use crate::log::{GuardMemoryKind, GuardOp};
use crate::table::{DriverResource, ResourceClass, ResourceEntry};

const RESERVED: c_int = 2;
const USED: c_int = 0;
const MEMORY_NODE: c_int = 10;
const CHILD_GRAPH: c_int = 4;
const MOST_NODES: usize = 1 << 16;

/// CUDA_MEM_ALLOC_NODE_PARAMS, with room for fields that later versions add.
#[repr(C)]
pub(crate) struct AllocNodeParams {
    pool: [u64; 12],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    pointer: u64,
    spare: [u64; 16],
}

/// # Safety
///
/// See [`super`], for this and the functions below.
pub(super) unsafe fn instantiate(
    guard: &ProcessGuard,
    out: *mut OpaqueHandle,
    graph: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // The executable graph itself takes device memory too.
    let (code, _) = measure::charge_growth(guard, GuardMemoryKind::Launch, call);
    if code == SUCCESS && !out.is_null() {
        let wanted = own_calls::outside_capture(|| wanted(graph, 0));
        if wanted > 0 {
            // SAFETY: the driver has written it.
            let key = unsafe { *out } as u64;
            let _ =
                guard.table.put(ResourceEntry { key, resource: DriverResource::Graph { wanted } });
        }
    }
    code
}

/// What the allocation nodes of a graph ask for together. An upper bound: nodes of one graph may
/// share memory.
fn wanted(graph: OpaqueHandle, depth: u32) -> u64 {
    let mut count = 0;
    // SAFETY: without room for the nodes the driver writes their number only.
    let code = unsafe { own_calls::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) };
    if code != SUCCESS || count == 0 || count > MOST_NODES || depth > 8 {
        return 0;
    }
    let Some(nodes) = GraphNodes::new(count) else { return 0 };
    // SAFETY: there is room for `count` nodes.
    let code = unsafe { own_calls::cuGraphGetNodes(graph, nodes.at, &raw mut count) };
    if code != SUCCESS {
        return 0;
    }
    nodes.get(count).iter().map(|&node| of_node(node, depth)).fold(0, u64::saturating_add)
}

fn of_node(node: OpaqueHandle, depth: u32) -> u64 {
    let mut kind = -1;
    // SAFETY: a number is written.
    if unsafe { own_calls::cuGraphNodeGetType(node, &raw mut kind) } != SUCCESS {
        return 0;
    }
    match kind {
        MEMORY_NODE => {
            let mut params = AllocNodeParams {
                pool: [0; 12],
                access: core::ptr::null(),
                access_count: 0,
                bytes: 0,
                pointer: 0,
                spare: [0; 16],
            };
            // SAFETY: the structure is at least as large as the driver's.
            let code = unsafe { own_calls::cuGraphMemAllocNodeGetParams(node, &raw mut params) };
            if code == SUCCESS { params.bytes as u64 } else { 0 }
        }
        CHILD_GRAPH => {
            let mut graph = core::ptr::null_mut();
            // SAFETY: a handle is written.
            let code = unsafe { own_calls::cuGraphChildGraphNodeGetGraph(node, &raw mut graph) };
            if code == SUCCESS { wanted(graph, depth + 1) } else { 0 }
        }
        _ => 0,
    }
}

/// Room for handles, mapped by the kernel: there is no allocator here.
struct GraphNodes {
    at: *mut OpaqueHandle,
    count: usize,
}

impl GraphNodes {
    fn new(count: usize) -> Option<GraphNodes> {
        let at = crate::sys::map_anonymous(count * size_of::<OpaqueHandle>(), 0);
        (!at.is_null()).then_some(GraphNodes { at: at.cast(), count })
    }

    fn get(&self, count: usize) -> &[OpaqueHandle] {
        // SAFETY: the mapping is zeroed and has room for `self.count` handles.
        unsafe { core::slice::from_raw_parts(self.at, count.min(self.count)) }
    }
}

impl Drop for GraphNodes {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mapping, and this is its last use.
        unsafe { crate::sys::munmap(self.at.cast(), self.count * size_of::<OpaqueHandle>()) };
    }
}

pub(super) unsafe fn launch(
    guard: &ProcessGuard,
    exec: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let graph = guard.table.get(ResourceClass::Graph, exec as u64).map(|entry| entry.resource);
    let target = devices::current(guard);
    let (Some(DriverResource::Graph { wanted: bytes }), Some(target)) = (graph, target) else {
        // SAFETY: the same contract.
        return unsafe { kernels::launch(guard, exec, call) };
    };
    let device = target.device;
    // One at a time: two launches at once could not both have what is idle now.
    let _lock = guard.pool_locks[device % POOL_LOCKS].lock();
    // This launch can use what the device has reserved for graphs and no graph uses now.
    let idle =
        figure(device, RESERVED).unwrap_or(0).saturating_sub(figure(device, USED).unwrap_or(0));
    let ahead = bytes.saturating_sub(idle);
    let held = guard.ledger.reserve_ahead(guard.process, device, ahead) || {
        guard.reclaim();
        guard.ledger.reserve_ahead(guard.process, device, ahead)
    };
    if !held {
        guard.ledger.refuse_uncharged(guard.process, device, bytes);
        guard.log_charge(GuardOp::Refuse, GuardMemoryKind::Graph, device, exec as u64, bytes);
        return OUT_OF_MEMORY;
    }
    let code = call();
    refresh(guard, device, ahead);
    code
}

/// Sets the charge for graphs to what the driver has reserved for them, and takes back what was
/// charged `ahead`.
fn refresh(guard: &ProcessGuard, device: usize, ahead: u64) {
    let key = device as u64;
    let now = figure(device, RESERVED);
    let before = guard.table.change(ResourceClass::GraphMemory, key, |resource| {
        *resource = now.map_or(*resource, |reserved| DriverResource::GraphMemory { reserved });
    });
    let before = match before {
        Some(DriverResource::GraphMemory { reserved }) => reserved,
        _ => {
            let resource = DriverResource::GraphMemory { reserved: now.unwrap_or(0) };
            let _ = guard.table.put(ResourceEntry { key, resource });
            0
        }
    };
    let now = now.unwrap_or(before);
    let op = if now > before { GuardOp::Charge } else { GuardOp::Discharge };
    let at = match now.abs_diff(before) {
        0 => crate::sys::now(),
        change => guard.log_charge(op, GuardMemoryKind::Graph, device, key, change),
    };
    guard.ledger.recharge(guard.process, device, before + ahead, now, at);
}

fn figure(device: usize, which: c_int) -> Option<u64> {
    let number = devices::number_of(device)?;
    let mut value = 0;
    let ask = || {
        // SAFETY: a number is written.
        unsafe { own_calls::cuDeviceGetGraphMemAttribute(number, which, &raw mut value) }
    };
    (own_calls::outside_capture(ask) == SUCCESS).then_some(value)
}

pub(super) unsafe fn destroy(
    guard: &ProcessGuard,
    exec: OpaqueHandle,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let known = guard.table.take(ResourceClass::Graph, exec as u64);
    let code = call();
    if let (Some(entry), false) = (known, code == SUCCESS) {
        let _ = guard.table.put(entry);
    }
    code
}

pub(super) unsafe fn trim(
    guard: &ProcessGuard,
    device: c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let index = devices::of_number(guard, device);
    let _lock = index.map(|device| guard.pool_locks[device % POOL_LOCKS].lock());
    let code = call();
    if let Some(device) = index {
        refresh(guard, device, 0);
    }
    code
}
