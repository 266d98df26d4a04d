//! Limits are verified, classified as hard, soft or unavailable, and violations are seen.

use super::*;
use crate::backend::host::Host;
use crate::backend::sim::{Sim, SimCall, SimConfig};
use crate::memory::{Request, Stream};
use crate::stack::track::BufferLocation;

fn sim(total: Bytes, can_map: bool) -> Arc<Sim> {
    Arc::new(Sim::new(SimConfig::default().with_total(total).with_mapping(can_map)))
}

fn manager() -> GpuMemoryManager {
    GpuMemoryManager::new(MemoryConfig::new()).unwrap()
}

fn limit(bytes: Bytes) -> LimitRequest {
    LimitRequest::new().with_limit(bytes)
}

#[test]
fn the_only_handle_to_a_simulated_device_makes_a_hard_limit() {
    for can_map in [true, false] {
        let manager = manager();
        assert_eq!(manager.add_device(sim(Bytes::gib(8), can_map)), "sim:0");
        let report = manager.apply_limits(&limit(Bytes::gib(2))).unwrap();
        assert_eq!((report.limit_type, report.verified), (LimitType::Hard, true), "{report}");
        assert_eq!(report.methods_applied, ["gate", "pool"]);
        assert_eq!(report.devices[0].budget, Bytes::gib(2));
        assert_eq!(manager.get_current_gpu_memory_usage(), Some(Bytes::ZERO));
        let pool = manager.pool("sim:0").unwrap();
        let raw = pool.device().allocate(Request::new(Bytes::gib(2))).unwrap();
        assert!(pool.allocate(Request::new(1u64)).unwrap_err().is_full_now(), "one limit for all");
        pool.device().release(raw, Stream::DEFAULT).unwrap();
        assert!(pool.allocate(Request::new(1u64)).is_ok());
    }
}

#[test]
fn a_kept_handle_makes_it_soft_and_the_probe_asks_the_device_nothing() {
    for can_map in [true, false] {
        let (device, manager) = (sim(Bytes::gib(8), can_map), manager());
        manager.add_device(Arc::clone(&device) as Arc<dyn Device>);
        let report = manager.apply_limits(&limit(Bytes::gib(2))).unwrap();
        assert_eq!((report.limit_type, report.verified), (LimitType::Soft, true), "{report}");
        for call in
            [SimCall::Allocate, SimCall::Create, SimCall::Reserve, SimCall::Map, SimCall::Info]
        {
            assert_eq!(device.calls(call), 0, "{call:?}");
        }
        let usage = &manager.usage()[0];
        assert_eq!((usage.asked, usage.refused), (0, 1 + u64::from(can_map)));
        // And this is why it is soft.
        assert!(device.allocate(Request::new(Bytes::gib(3))).is_ok());
    }
}

#[test]
fn the_weakest_device_decides() {
    let manager = manager();
    manager.add_device(sim(Bytes::gib(8), true));
    assert_eq!(manager.add_device(Arc::new(Host::with_total(Bytes::gib(4)))), "cpu");
    assert_eq!(manager.add_device(Arc::new(Host::with_total(Bytes::gib(4)))), "cpu:1");
    let report = manager.apply_limits(&limit(Bytes::gib(1))).unwrap();
    assert_eq!((report.limit_type, report.verified), (LimitType::Soft, true));
    let types: Vec<_> = report.devices.iter().map(|device| device.limit_type).collect();
    assert_eq!(types, [LimitType::Hard, LimitType::Soft, LimitType::Soft]);
    assert!(report.to_string().contains("cpu: soft, 1.00 GiB may be reserved; others"), "{report}");
    assert_eq!(manager.pool("host").unwrap().capacity(), Bytes::gib(1));
    let error = manager.pool("cuda:0").unwrap_err().to_string();
    assert!(error.contains("sim:0, cpu, cpu:1"), "{error}");
}

#[test]
fn without_a_device_nothing_is_held() {
    let report = manager().apply_limits(&LimitRequest::new()).unwrap();
    assert_eq!((report.limit_type, report.verified), (LimitType::Unavailable, false));
    assert!(report.methods_applied.is_empty());
    assert_eq!(manager().get_current_gpu_memory_usage(), None);
    assert_eq!(manager().pressure(), None);
    assert_eq!(manager().validate_memory_within_limit(), LimitCheck::default());
    let manager = manager();
    manager.apply_limits(&LimitRequest::new()).unwrap();
    assert_eq!(manager.validate_memory_within_limit().within_limit, None);
    manager.add_device(sim(Bytes::gib(64), true));
    assert_eq!(manager.pool("sim:0").unwrap().capacity(), Bytes::gib(8), "held from the start");
}

#[test]
fn a_pool_that_was_made_before_is_held_by_the_gate() {
    for can_map in [true, false] {
        let manager = manager();
        manager.add_device(sim(Bytes::gib(8), can_map));
        let pool = manager.pool("sim:0").unwrap();
        let block = pool.allocate(Request::new(Bytes::gib(3))).unwrap();
        let report = manager.apply_limits(&limit(Bytes::gib(2))).unwrap();
        assert_eq!((report.limit_type, report.verified), (LimitType::Hard, true), "{report}");
        assert_eq!((&report.methods_applied[..], report.warnings.len()), (&["gate".into()][..], 2));
        assert_eq!(manager.pressure(), Some(MemoryPressure::Critical));

        let check = manager.validate_memory_within_limit();
        assert_eq!((check.within_limit, check.violations.len()), (Some(false), 1));
        assert!(check.violations[0].held >= Bytes::gib(3));
        assert_eq!(manager.violations(), check.violations);

        assert!(pool.allocate(Request::new(Bytes::mib(100))).is_err());
        pool.release(block, Stream::DEFAULT).unwrap();
        pool.clear().unwrap();
        let small = pool.allocate(Request::new(Bytes::gib(1))).unwrap();
        assert!(pool.allocate(Request::new(Bytes::mib(1100))).is_err());
        assert_eq!(manager.validate_memory_within_limit().within_limit, Some(true));
        pool.release(small, Stream::DEFAULT).unwrap();
        assert!(manager.usage()[0].peak >= Bytes::gib(3));
    }
}

#[test]
fn a_failed_call_reserves_nothing() {
    let (device, manager) = (sim(Bytes::gib(8), true), manager());
    manager.add_device(Arc::clone(&device) as Arc<dyn Device>);
    let pool = manager.pool("sim:0").unwrap();
    device.sabotage(Some(Box::new(|call| {
        matches!(call, SimCall::Create | SimCall::Allocate)
            .then(|| Error::Device { call: "create", why: "sabotage".into() })
    })));
    assert!(pool.allocate(Request::new(Bytes::mib(100))).is_err());
    assert!(pool.device().allocate(Request::new(1u64)).is_err());
    assert_eq!(manager.get_current_gpu_memory_usage(), Some(Bytes::ZERO));
    device.sabotage(None);
    let block = pool.device().allocate(Request::new(1u64)).unwrap();
    assert_eq!(manager.get_current_gpu_memory_usage(), Some(Bytes::kib(4)));
    pool.device().release(block, Stream::DEFAULT).unwrap();
    assert!(pool.device().release(block, Stream::DEFAULT).is_err());
    assert_eq!(manager.get_current_gpu_memory_usage(), Some(Bytes::ZERO));
}

#[test]
fn the_line_holds_under_threads() {
    let manager = manager();
    manager.add_device(sim(Bytes::gib(1), false));
    manager.apply_limits(&limit(Bytes::mib(1))).unwrap();
    let pool = manager.pool("sim:0").unwrap();
    let device = pool.device();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    if let Ok(block) = device.allocate(Request::new(Bytes::kib(300))) {
                        device.release(block, Stream::DEFAULT).unwrap();
                    }
                }
            });
        }
    });
    let usage = &manager.usage()[0];
    assert!(usage.peak <= Bytes::mib(1) && usage.held == Bytes::ZERO, "{usage:?}");
}

#[test]
fn the_workspace_is_half_of_the_line() {
    assert_eq!(manager().get_tensorrt_workspace_size(), Bytes::gib(4));
    let config = MemoryConfig::new().with_limit(Bytes::gib(2));
    let manager = GpuMemoryManager::new(config).unwrap();
    assert_eq!(manager.get_tensorrt_workspace_size(), Bytes::gib(1));
    let board = LimitRequest::new().with_unified(true).with_system_total(Bytes::gib(7));
    let board = board.with_limit(Bytes::gib(8)).with_keep_free(Bytes::gib(1));
    let report = manager.apply_limits(&board).unwrap();
    assert_eq!((report.limit, report.effective_limit), (Bytes::gib(8), Bytes::gib(6)));
    assert_eq!(manager.get_tensorrt_workspace_size(), Bytes::gib(3));
    assert_eq!(report.for_engines[1].value, "0=6144M");
}

#[test]
fn sums_are_over_all_pools() {
    let manager = manager();
    manager.add_device(sim(Bytes::gib(8), true));
    manager.add_device(sim(Bytes::gib(8), true));
    assert_eq!(manager.devices(), ["sim:0", "sim:1"]);
    let blocks = ["sim:0", "sim:1"]
        .map(|name| manager.pool(name).unwrap().allocate(Request::new(Bytes::gib(1))).unwrap());
    assert_eq!(manager.stats().in_use_bytes, Bytes::gib(2));
    assert_eq!(manager.stats().active_buffers, 2);
    assert!(manager.pool("sim:0").unwrap().release(blocks[1], Stream::DEFAULT).is_err());
    assert_eq!(manager.pressure(), Some(MemoryPressure::Low));
}

#[test]
fn a_model_goes_to_the_roomiest_device_of_the_first_kind_that_has_room() {
    let manager = GpuMemoryManager::new(MemoryConfig::new()).unwrap();
    let error = manager.device_for_model(Bytes(1)).unwrap_err().to_string();
    assert!(error.contains("no device"), "{error}");
    manager.add_device(sim(Bytes::gib(2), true));
    manager.add_device(sim(Bytes::gib(8), true));
    manager.add_device(Arc::new(Host::with_total(Bytes::mib(64))));
    assert_eq!(manager.device_for_model(Bytes::mib(1)).unwrap(), "cpu", "sim is never preferred");
    assert_eq!(manager.device_for_model(Bytes::gib(1)).unwrap(), "sim:1");
    let error = manager.device_for_model(Bytes::gib(9)).unwrap_err().to_string();
    for part in ["sim:0: 2.00 GiB free", "sim:1: 8.00 GiB free", "cpu: 64.00 MiB free"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_full_device_falls_back_to_the_host_only_where_that_is_asked_for() {
    let config = MemoryConfig::new().with_min_free_bytes(0).with_gpu_memory_fraction(1.0);
    let manager = GpuMemoryManager::new(config.clone()).unwrap();
    manager.add_device(sim(Bytes::mib(64), true));
    let first = manager.allocate_or_fall_back("sim:0", Request::new(Bytes::mib(48))).unwrap();
    assert_eq!((first.location(), manager.stats().cpu_fallbacks), (BufferLocation::Gpu, 0));
    let second = manager.allocate_or_fall_back("sim:0", Request::new(Bytes::mib(48))).unwrap();
    assert_eq!(second.location(), BufferLocation::Cpu);
    assert_eq!(second.device().info().backend, "cpu");
    assert_eq!(second.to_string(), "48.00 MiB on CPU");
    let stats = manager.stats();
    assert_eq!((stats.cpu_fallbacks, stats.in_use_bytes), (1, Bytes::mib(96)));
    let plain = manager.pool("sim:0").unwrap().allocate(Request::new(Bytes::mib(48)));
    assert!(plain.unwrap_err().is_full_now(), "a pool never hands out host memory");
    second.release(Stream::DEFAULT).unwrap();
    first.release(Stream::DEFAULT).unwrap();
    assert_eq!(manager.stats().in_use_bytes, Bytes::ZERO);
    assert_eq!(manager.devices(), ["sim:0"], "the host is no device of the manager's");

    let strict = GpuMemoryManager::new(config.with_cpu_fallback(false)).unwrap();
    strict.add_device(sim(Bytes::mib(64), true));
    let refused = strict.allocate_or_fall_back("sim:0", Request::new(Bytes::mib(65)));
    assert!(refused.unwrap_err().is_out_of_memory());
    assert_eq!(strict.stats().cpu_fallbacks, 0);
    assert!(manager.allocate_or_fall_back("cuda:7", Request::new(1u64)).is_err());
}

#[test]
fn with_tracking_a_pool_lists_what_is_live() {
    for tracking in [true, false] {
        let config = MemoryConfig::new().with_min_free_bytes(0).with_tracking(tracking);
        let manager = GpuMemoryManager::new(config).unwrap();
        manager.add_device(sim(Bytes::mib(64), true));
        let pool = manager.pool("sim:0").unwrap();
        let block = pool.allocate(Request::new(Bytes::mib(8)).tagged("weights")).unwrap();
        let listed = pool.tracker().map(|list| list.by_size());
        assert_eq!(listed.is_some(), tracking);
        if let Some(listed) = listed {
            assert_eq!(listed[0].tag.as_deref(), Some("weights"));
            assert_eq!((listed.len(), listed[0].bytes), (1, Bytes::mib(8)));
        }
        pool.release(block, Stream::DEFAULT).unwrap();
        assert!(pool.release(block, Stream::DEFAULT).is_err());
        assert_eq!(pool.tracker().map(|list| list.count()), tracking.then_some(0));
    }
}

#[test]
fn all_devices_of_the_machine_are_taken_over_or_their_absence_explained() {
    let manager = GpuMemoryManager::new(MemoryConfig::new()).unwrap();
    let missing = manager.add_all_devices();
    assert!(manager.devices().contains(&"cpu".to_string()));
    assert!(missing.iter().all(|error| matches!(error, Error::Unavailable { .. })), "{missing:?}");
}

fn recorded(name: &str) -> Machine {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../machine/tests/machines/");
    Machine::recorded(format!("{folder}{name}"))
}

#[test]
fn a_line_that_fails_on_one_device_is_drawn_on_none() {
    let slot = |name: &str| Slot {
        name: name.to_string(),
        gate: Arc::new(DeviceGate::new(sim(Bytes::gib(8), true))),
        pool: None,
        fallback: None,
    };
    let mut slots = [slot("a"), slot("b"), slot("c")];
    let here = Machine::here();
    // The first two have pools and keep them; the third cannot make one of such a
    // configuration, when the others have their limit already.
    let good = MemoryConfig::new();
    apply::apply(&mut slots[..1], &good, Bytes::gib(1), &here).unwrap();
    slots[1].pool(&good, None).unwrap();
    let bad = MemoryConfig { gpu_memory_fraction: 2.0, ..MemoryConfig::new() };
    let error = apply::apply(&mut slots, &bad, Bytes::gib(2), &here).unwrap_err();
    assert!(error.to_string().contains("gpu_memory_fraction"), "{error}");
    let limits: Vec<_> = slots.iter().map(|slot| slot.gate.limit()).collect();
    assert_eq!(limits, [Bytes::gib(1), Bytes::MAX, Bytes::MAX], "as they were");
    let pools: Vec<_> = slots.iter().map(|slot| slot.pool.is_some()).collect();
    assert_eq!(pools, [true, true, false]);
}

#[test]
fn a_recorded_board_draws_its_own_line_and_watches_the_system() {
    let manager = GpuMemoryManager::on(recorded("orin-nano"), MemoryConfig::default()).unwrap();
    manager.add_device(sim(Bytes::gib(8), false));
    let report = manager.apply_limits(&LimitRequest::new()).unwrap();
    let safe = Bytes::kib(7_802_096) - Bytes::mib(512);
    assert_eq!((report.limit, report.effective_limit), (Bytes::gib(8), safe));
    assert!(report.is_unified);
    assert_eq!(report.methods_applied, ["gate", "pool", "watch"]);
    assert_eq!(manager.validate_memory_within_limit().within_limit, Some(true));
    // With most of it to be kept free, what the system has used already is past the limit.
    let tight = LimitRequest::new().with_keep_free(Bytes::gib(6));
    manager.apply_limits(&tight).unwrap();
    let check = manager.validate_memory_within_limit();
    assert_eq!(check.within_limit, Some(false));
    assert_eq!(check.violations[0].device, "system");
    assert_eq!(check.violations[0].held, Bytes::kib(7_802_096 - 4_915_200));

    let desktop = GpuMemoryManager::on(recorded("desktop"), MemoryConfig::default()).unwrap();
    desktop.add_device(sim(Bytes::gib(8), false));
    let report = desktop.apply_limits(&LimitRequest::new()).unwrap();
    assert!(!report.is_unified && report.effective_limit == Bytes::gib(8), "{report}");
    assert_eq!(report.methods_applied, ["gate", "pool"]);
}

#[test]
fn on_a_board_without_a_device_the_limit_is_unavailable_and_watched() {
    let manager = GpuMemoryManager::on(recorded("nano"), MemoryConfig::default()).unwrap();
    let report = manager.apply_limits(&LimitRequest::new()).unwrap();
    assert_eq!((report.limit_type, report.verified), (LimitType::Unavailable, false));
    assert_eq!(report.methods_applied, ["watch"]);
    assert_eq!(manager.validate_memory_within_limit().within_limit, Some(true));
}

#[test]
fn engines_of_a_child_are_told() {
    let manager = manager();
    manager.add_device(sim(Bytes::gib(8), true));
    let report = manager.apply_limits(&limit(Bytes::gib(2))).unwrap();
    let mut child = std::process::Command::new("true");
    report.tell(&mut child);
    let told: Vec<_> = child.get_envs().filter_map(|(name, value)| Some((name, value?))).collect();
    assert!(told.contains(&("CUPY_GPU_MEMORY_LIMIT".as_ref(), "2147483648".as_ref())), "{told:?}");
    assert!(told.iter().any(|(name, value)| *name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
        && *value == "0=2048M"));
    let share = EngineVariable::for_limit(Bytes::gib(1), Some(Bytes::gib(3)));
    assert_eq!(share[2].value, "0.3333");
}

#[test]
fn a_device_that_holds_this_process_by_itself_is_seen() {
    let (limit, room) = (Bytes::gib(2), Bytes::gib(100));
    let gate = |total: Bytes| {
        let gate = DeviceGate::new(sim(total, false));
        gate.set_limit(limit);
        gate
    };
    // A driver that holds a client shows what is left of its limit as free.
    assert!(gate(Bytes::gib(2)).device_holds(Bytes::gib(2), room));
    assert!(gate(Bytes::gib(1)).device_holds(Bytes::gib(1), room));
    // It shows more than the limit: it does not hold it.
    assert!(!gate(Bytes::gib(8)).device_holds(Bytes::gib(2), room));
    // The card is full anyway, or the limit is above our limit: nothing is shown.
    assert!(!gate(Bytes::gib(2)).device_holds(Bytes::gib(2), Bytes::gib(2)));
    assert!(!gate(Bytes::gib(2)).device_holds(Bytes::gib(3), room));
    // It says so, and hands out more all the same: returned at once, and not held.
    let device = sim(Bytes::gib(8), false);
    let taken = device.allocate(Request::new(Bytes::gib(6))).unwrap();
    let open = DeviceGate::new(device);
    open.set_limit(Bytes::gib(1));
    assert!(!open.device_holds(Bytes::gib(2), room), "the limit is above the limit");
    open.set_limit(Bytes::mib(1536));
    assert!(!open.device_holds(Bytes::mib(1536), room), "more is free than that");
    assert_eq!(open.stats().total_allocated_bytes, taken.size(), "nothing is kept");
}
