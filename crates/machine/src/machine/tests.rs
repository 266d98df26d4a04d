//! Recorded machines, examined.

use super::*;

fn machine(name: &str) -> Machine {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(name);
    assert!(root.is_dir(), "{}", root.display());
    Machine::recorded(root)
}

#[test]
fn recorded_machines_are_told_apart() {
    for (name, unified, because) in [
        ("nano", true, "nv_tegra_release"),
        ("orin-nano", true, "nv_tegra_release"),
        ("thor", true, "nv_tegra_release"),
        ("desktop", false, "RTX 4070"),
        ("server", false, "NVIDIA H200"),
    ] {
        let found = machine(name).unified();
        assert_eq!(found.value, Some(unified), "{name}");
        assert!(found.because.contains(because), "{name}: {}", found.because);
        assert_eq!(machine(name).is_jetson(), unified, "{name}: these boards are Jetsons");
    }
}

#[test]
fn a_board_is_known_by_its_tree_where_the_release_file_is_missing() {
    for name in ["nano", "orin-nano", "thor"] {
        let tree: Vec<_> = machine(name)
            .evidence()
            .into_iter()
            .filter(|e| e.found.contains("devicetree"))
            .collect();
        assert_eq!(tree.len(), 1, "{name}");
        assert!(tree[0].is_unified && tree[0].found.contains("nvidia,tegra"), "{}", tree[0]);
    }
    assert_eq!(machine("server").evidence().len(), 2, "one for each GPU");
}

#[test]
fn on_unified_memory_the_system_is_the_figure_and_the_gpu_a_part_of_it() {
    let info = machine("orin-nano").memory_info();
    assert_eq!(info.is_unified, Some(true));
    assert_eq!(info.system_total, Some(Bytes::kib(7_802_096)));
    assert_eq!(info.system_available, Some(Bytes::kib(4_915_200)));
    assert_eq!(info.system_used, Some(Bytes::kib(7_802_096 - 4_915_200)));
    assert_eq!(info.largest_single, Some(Bytes::kib(1_203_456)), "MemFree");
    assert_eq!(info.gpu_codecs_cameras, Some(Bytes::mib(640)));
    assert!(info.gpu_codecs_cameras < info.system_used, "a part, never a sum");
    assert_eq!((info.gpu_alloc, info.gpu_reserved), (None, None), "no allocator was given");
    assert!(info.note.contains("never add"), "{}", info.note);
}

#[test]
fn thor_has_no_nvmap_and_a_desktop_no_single_bound() {
    let thor = machine("thor").memory_info();
    assert_eq!((thor.is_unified, thor.gpu_codecs_cameras), (Some(true), None));
    assert!(thor.largest_single.is_some());
    let desktop = machine("desktop").memory_info();
    assert_eq!((desktop.is_unified, desktop.largest_single), (Some(false), None));
    assert!(desktop.note.contains("beside"), "{}", desktop.note);
}

#[test]
fn an_allocators_view_is_shown_as_it_is() {
    let info = machine("nano").memory_info().with_allocator(Bytes::mib(300), Bytes::mib(512));
    assert_eq!(info.gpu_alloc, Some(Bytes::mib(300)));
    assert_eq!(info.gpu_reserved, Some(Bytes::mib(512)));
}

#[test]
fn an_empty_tree_is_unknown_in_every_field() {
    let info = Machine::recorded("/no/such/machine").memory_info();
    assert_eq!((info.is_unified, info.system_total, info.system_used), (None, None, None));
    assert!(info.note.contains("not known"), "{}", info.note);
}

/// A tree of files as `make` makes them.
fn tree(paths: &[&str], make: impl Fn(&Path)) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in paths {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        make(&path);
    }
    root
}

#[test]
fn what_is_no_file_of_text_tells_nothing() {
    const FILES: [&str; 5] = [
        "proc/meminfo",
        "proc/driver/nvidia/gpus/0/information",
        "sys/firmware/devicetree/base/compatible",
        "sys/firmware/devicetree/base/model",
        "tmp/nvidia-mps/nvidia-cuda-mps-control.pid",
    ];
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success(), "{}", path.display());
    };
    let garbage: Vec<u8> =
        (0..4000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    let trees = [
        tree(&FILES, |path| std::fs::write(path, "").unwrap()),
        tree(&FILES, |path| std::fs::write(path, [0; 64]).unwrap()),
        tree(&FILES, |path| std::fs::write(path, &garbage).unwrap()),
        tree(&FILES, |path| std::fs::File::create(path).unwrap().set_len(20 << 30).unwrap()),
        tree(&FILES, |path| std::fs::create_dir(path).unwrap()),
        tree(&FILES, |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        tree(&FILES, |path| std::os::unix::fs::symlink(path, path).unwrap()),
        tree(&FILES, pipe),
    ];
    for root in &trees {
        let machine = Machine::recorded(root.path());
        let info = machine.memory_info();
        assert_eq!((info.is_unified, info.system_total, info.system_used), (None, None, None));
        assert_eq!((info.largest_single, info.gpu_codecs_cameras), (None, None));
        machine.mps().unwrap_err();
    }
}

#[test]
fn a_name_needs_no_nul_at_its_end_and_lines_may_end_as_on_windows() {
    for model in
        ["NVIDIA Jetson Orin Nano", "NVIDIA Jetson Orin Nano\0", "NVIDIA Jetson Orin Nano\r\n"]
    {
        let root = tree(&["sys/firmware/devicetree/base/model"], |path| {
            std::fs::write(path, model).unwrap();
        });
        let unified = Machine::recorded(root.path()).unified();
        assert_eq!(unified.value, Some(true), "{model:?}");
        assert!(unified.because.ends_with("Orin Nano"), "{:?}", unified.because);
    }
}

#[test]
fn this_machine_answers() {
    let info = memory_info();
    assert_eq!(info.is_unified, is_unified());
    if cfg!(target_os = "linux") {
        assert!(info.system_total.is_some() && info.system_available <= info.system_total);
    }
}
