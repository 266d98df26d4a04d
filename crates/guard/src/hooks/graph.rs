//! Memory of graphs: allocation nodes take theirs when the graph is launched, from memory
//! that the device keeps for all graphs.
//!
//! When a graph is made executable its allocation nodes are added up. Before it is launched,
//! so much is charged ahead; after the launch the charge becomes what the driver says it
//! keeps for graphs. A launch that might not fit is refused.

use core::ffi::{c_char, c_int, c_void};

use super::{Code, Handle, OUT_OF_MEMORY, SUCCESS, ask, pool};
use super::{code, devices, measure};
use crate::here::{Here, TURNS};
use crate::log::{Kind, Op};
use crate::table::{Class, Entry, Thing};

const RESERVED: c_int = 2;
const USED: c_int = 0;
const MEMORY_NODE: c_int = 10;
const CHILD_GRAPH: c_int = 4;
const MOST_NODES: usize = 1 << 16;

/// CUDA_MEM_ALLOC_NODE_PARAMS, with room for what later versions add.
#[repr(C)]
pub(crate) struct NodeParams {
    pool: [u64; 12],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    pointer: u64,
    spare: [u64; 16],
}

/// # Safety
///
/// As the driver's, for this and those below.
pub(super) unsafe fn instantiate(
    here: &Here,
    out: *mut Handle,
    graph: Handle,
    _: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    // An executable graph lies on the device, too.
    let (code, _) = measure::around(here, Kind::Launch, call);
    if code == SUCCESS && !out.is_null() {
        let wanted = ask::unseen(|| wanted(graph, 0));
        if wanted > 0 {
            // SAFETY: the driver has written it.
            let key = unsafe { *out } as u64;
            let _ = here.table.put(Entry { key, thing: Thing::Graph { wanted } });
        }
    }
    code
}

pub(super) unsafe fn instantiate_v2(
    here: &Here,
    out: *mut Handle,
    graph: Handle,
    _: *mut Handle,
    _: *mut c_char,
    _: usize,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { instantiate(here, out, graph, 0, call) }
}

pub(super) unsafe fn instantiate_with(
    here: &Here,
    out: *mut Handle,
    graph: Handle,
    _: *mut c_void,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { instantiate(here, out, graph, 0, call) }
}

/// What the allocation nodes of a graph ask for together: more than it needs, as memory is
/// used again within a graph.
fn wanted(graph: Handle, depth: u32) -> u64 {
    let mut count = 0;
    // SAFETY: without a place for them only their number is written.
    let code = unsafe { ask::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) };
    if code != SUCCESS || count == 0 || count > MOST_NODES || depth > 8 {
        return 0;
    }
    let Some(nodes) = Nodes::new(count) else { return 0 };
    // SAFETY: there is room for as many as is said.
    let code = unsafe { ask::cuGraphGetNodes(graph, nodes.at, &raw mut count) };
    if code != SUCCESS {
        return 0;
    }
    nodes.get(count).iter().map(|&node| of_node(node, depth)).fold(0, u64::saturating_add)
}

fn of_node(node: Handle, depth: u32) -> u64 {
    let mut kind = -1;
    // SAFETY: a number is written.
    if unsafe { ask::cuGraphNodeGetType(node, &raw mut kind) } != SUCCESS {
        return 0;
    }
    match kind {
        MEMORY_NODE => {
            let mut params = NodeParams {
                pool: [0; 12],
                access: core::ptr::null(),
                access_count: 0,
                bytes: 0,
                pointer: 0,
                spare: [0; 16],
            };
            // SAFETY: the structure is as large as the driver's, and larger.
            let code = unsafe { ask::cuGraphMemAllocNodeGetParams(node, &raw mut params) };
            if code == SUCCESS { params.bytes as u64 } else { 0 }
        }
        CHILD_GRAPH => {
            let mut graph = core::ptr::null_mut();
            // SAFETY: a handle is written.
            let code = unsafe { ask::cuGraphChildGraphNodeGetGraph(node, &raw mut graph) };
            if code == SUCCESS { wanted(graph, depth + 1) } else { 0 }
        }
        _ => 0,
    }
}

/// Room for handles, straight from the kernel.
struct Nodes {
    at: *mut Handle,
    count: usize,
}

impl Nodes {
    fn new(count: usize) -> Option<Nodes> {
        let at = crate::sys::anonymous(count * size_of::<Handle>(), 0);
        (!at.is_null()).then_some(Nodes { at: at.cast(), count })
    }

    fn get(&self, count: usize) -> &[Handle] {
        // SAFETY: the mapping is zeroed and as large as `self.count` of them.
        unsafe { core::slice::from_raw_parts(self.at, count.min(self.count)) }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and this is its end.
        unsafe { crate::sys::munmap(self.at.cast(), self.count * size_of::<Handle>()) };
    }
}

pub(super) unsafe fn launch(
    here: &Here,
    exec: Handle,
    _: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let graph = here.table.get(Class::Graph, exec as u64).map(|entry| entry.thing);
    let target = devices::current(here);
    let (Some(Thing::Graph { wanted: bytes }), Some(target)) = (graph, target) else {
        return code::launched(here, exec, call);
    };
    let device = target.device;
    // One at a time: two that are launched at once cannot both have what is idle now.
    let _turn = here.turns[device % TURNS].hold();
    // What the device keeps for graphs and no graph uses now serves this one too.
    let idle =
        figure(device, RESERVED).unwrap_or(0).saturating_sub(figure(device, USED).unwrap_or(0));
    let ahead = bytes.saturating_sub(idle);
    let held = here.ledger.hold(here.process, device, ahead) || {
        here.reclaim();
        here.ledger.hold(here.process, device, ahead)
    };
    if !held {
        here.ledger.refuse_now(here.process, device, bytes);
        pool::note(here, Op::Refuse, Kind::Graph, device, exec as u64, bytes);
        return OUT_OF_MEMORY;
    }
    let code = call();
    refresh(here, device, ahead);
    code
}

/// Sets what graphs are charged to what the driver keeps for them.
fn refresh(here: &Here, device: usize, ahead: u64) {
    let key = device as u64;
    let now = figure(device, RESERVED);
    let before = here.table.change(Class::GraphMemory, key, |thing| {
        *thing = now.map_or(*thing, |reserved| Thing::GraphMemory { reserved });
    });
    let before = match before {
        Some(Thing::GraphMemory { reserved }) => reserved,
        _ => {
            let thing = Thing::GraphMemory { reserved: now.unwrap_or(0) };
            let _ = here.table.put(Entry { key, thing });
            0
        }
    };
    let now = now.unwrap_or(before);
    let op = if now > before { Op::Charge } else { Op::Discharge };
    let at = match now.abs_diff(before) {
        0 => crate::sys::now(),
        change => pool::note(here, op, Kind::Graph, device, key, change),
    };
    here.ledger.recharge(here.process, device, before + ahead, now, at);
}

fn figure(device: usize, which: c_int) -> Option<u64> {
    let number = devices::number_of(device)?;
    let mut value = 0;
    let ask = || {
        // SAFETY: a number is written.
        unsafe { ask::cuDeviceGetGraphMemAttribute(number, which, &raw mut value) }
    };
    (ask::unseen(ask) == SUCCESS).then_some(value)
}

pub(super) unsafe fn destroy(here: &Here, exec: Handle, call: impl FnOnce() -> Code) -> Code {
    let known = here.table.take(Class::Graph, exec as u64);
    let code = call();
    if let (Some(entry), false) = (known, code == SUCCESS) {
        let _ = here.table.put(entry);
    }
    code
}

pub(super) unsafe fn trim(here: &Here, device: c_int, call: impl FnOnce() -> Code) -> Code {
    let place = devices::of_number(here, device);
    let _turn = place.map(|device| here.turns[device % TURNS].hold());
    let code = call();
    if let Some(device) = place {
        refresh(here, device, 0);
    }
    code
}
