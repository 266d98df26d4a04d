//! Lines of our own making, in the forms that boards print.

use super::*;

const ORIN: &str = "06-01-2026 12:00:05 RAM 5120/7607MB (lfb 12x4MB) SWAP 100/3803MB (cached 7MB) \
    CPU [10%@1497,20%@729,off,off] EMC_FREQ 33%@2133 GR3D_FREQ 75%@[612,610] NVDEC off \
    VIC 36%@115 APE 200 cpu@50.5C/51C gpu@-256C tj@-3.25C VDD_IN 8000mW/7000mW/9000mW \
    VDD_SOC 1500mW NC 0mW/0mW NC 5mW/5mW";

#[test]
fn every_field_of_a_line_is_told() {
    let line = parse(ORIN).unwrap();
    assert_eq!(line.timestamp, Some("06-01-2026 12:00:05"));
    assert_eq!(line.clock_s, Some(1_780_315_205.0));
    assert_eq!((line.ram_used_mb, line.ram_total_mb), (Some(5120), Some(7607)));
    assert_eq!((line.lfb_blocks, line.lfb_block_kb), (Some(12), Some(4096)));
    assert_eq!((line.swap_used_mb, line.swap_cached_mb), (Some(100), Some(7)));
    assert_eq!(line.cpu.as_ref().map(Vec::len), Some(4));
    assert_eq!(line.cpu_mean_online(), Some(15.0));
    let gpu = line.gpu.as_ref().unwrap();
    assert_eq!(
        (gpu.util, &gpu.mhz),
        (Some(75.0), &ClockRate::Many(vec![Some(612.0), Some(610.0)]))
    );
    let names: Vec<&str> = line.engines.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["NVDEC", "VIC", "APE"]);
    assert!(line.engines[0].1.off);
    assert_eq!(line.engines[2].1.mhz, ClockRate::One(200.0));
    assert_eq!(line.temps_c, [("cpu", Some(50.5)), ("gpu", None), ("tj", Some(-3.25))]);
    assert_eq!(line.temps_peak_c, [("cpu", Some(51.0))]);
    let power = RailPower { cur: 8000.0, avg: Some(7000.0), peak: Some(9000.0) };
    assert_eq!(line.power_mw[0], ("VDD_IN", power));
    assert_eq!(line.power_mw[1].1, RailPower { cur: 1500.0, avg: None, peak: None });
    assert_eq!(line.power_mw.len(), 2, "pins that are not connected are no rails");
    assert_eq!(line.total_power_mw(), Some(8000.0));
}

#[test]
fn a_line_is_a_sample() {
    let sample = parse(ORIN).unwrap().to_sample();
    assert_eq!(sample.memory.used(), Some(crate::Bytes::mib(5120)));
    assert_eq!(sample.memory.swap_used(), Some(crate::Bytes::mib(100)));
    assert_eq!(sample.largest_free, Some(crate::Bytes::mib(4)));
    assert_eq!(sample.is_unified(), Some(true));
    assert_eq!(sample.gpus[0].mhz, Some(612.0));
    assert_eq!(sample.total_power_w, Some(8.0));
    assert_eq!(sample.cores.iter().filter(|core| core.online).count(), 2);
}

#[test]
fn what_is_no_record_is_said_to_be_none() {
    for text in [
        "",
        "  \t\r",
        "RAM",
        "RAM 5/9GB",
        "RAM 5/9",
        "RAM a/9MB",
        "NOT_RAM 5/9MB",
        "CPU",
        "CPU 311/311",
        "CPU [",
        "CPU [1%",
        "CPU [one%@2]",
        "the key RAM is printed first, then CPU",
        "cpu@40C GPU@41C",
        "EMC_FREQ 12%@2133 GR3D_FREQ 4%",
        "(lfb 3x4MB) SWAP 0/0MB (cached 0MB)",
    ] {
        assert!(parse(text).is_err(), "{text:?}: {:?}", parse(text));
    }
    let long = format!("RAM 1/2MB {}", "x".repeat(20 << 10));
    assert_eq!(parse(&long), Err(NotARecord::TooLong(long.len())));
}

#[test]
fn keys_are_matched_whole_and_the_last_of_two_counts() {
    let line = parse("RAM 1/2MB NOT_GR3D_FREQ 9%@5 XRAM 7/8MB GR3D_FREQ 1% RAM 3/4MB").unwrap();
    assert_eq!(line.ram_used_mb, Some(3));
    assert_eq!(line.gpu.as_ref().and_then(|gpu| gpu.util), Some(1.0));
    assert!(line.engines.is_empty(), "{:?}", line.engines);
    let line = parse("RAM 1/2MB VIC 3%@4 VIC off EMC_FREQ 5%@6 EMC_FREQ N/A").unwrap();
    assert_eq!(line.engines.len(), 1);
    assert!(line.engines[0].1.off);
    assert_eq!(line.emc, None);
    let line = parse("RAM 1/2MB VDD_IN 5mW/5mW VDD_IN N/A vdd_cam 7mW/8mW is 9").unwrap();
    assert_eq!(line.power_mw, [("vdd_cam", RailPower { cur: 7.0, avg: Some(8.0), peak: None })]);
    assert!(line.engines.is_empty(), "{:?}", line.engines);
}

#[test]
fn clocks_and_loads_come_in_every_form() {
    let load = |word: &str| parse(&format!("RAM 1/2MB GR3D_FREQ {word}")).unwrap().gpu;
    let of = |util, mhz| Some(EngineLoad { off: false, util, mhz });
    assert_eq!(load("12%"), of(Some(12.0), ClockRate::Unknown));
    assert_eq!(load("12%@600"), of(Some(12.0), ClockRate::One(600.0)));
    assert_eq!(
        load("12%@[600, 610]"),
        of(Some(12.0), ClockRate::Many(vec![Some(600.0), Some(610.0)]))
    );
    assert_eq!(load("@[600]"), of(None, ClockRate::Many(vec![Some(600.0)])));
    assert_eq!(load("@600"), of(None, ClockRate::One(600.0)));
    assert_eq!(load("600"), of(None, ClockRate::One(600.0)));
    assert_eq!(load("25.5%@400.25"), of(Some(25.5), ClockRate::One(400.25)));
    let none = [
        "off",
        "N/A",
        "%",
        "@",
        "x%",
        "-5%",
        "101%",
        "@[]",
        "@[off,N/A]",
        "-1%@-2",
        "1%%@4x",
        "NaN%@Inf",
    ];
    for none in none {
        assert_eq!(load(none), None, "{none}");
    }
}

#[test]
fn what_is_unknown_takes_nothing_with_it() {
    let load = |word: &str| parse(&format!("RAM 1/2MB GR3D_FREQ {word}")).unwrap().gpu;
    let of = |util, mhz| Some(EngineLoad { off: false, util, mhz });
    assert_eq!(load("20%@N/A"), of(Some(20.0), ClockRate::Unknown));
    assert_eq!(load("20%@-1"), of(Some(20.0), ClockRate::Unknown));
    let list = |all: &[Option<f64>]| ClockRate::Many(all.to_vec());
    let clocks = [None, Some(200.0), None, Some(400.0), None, None];
    assert_eq!(load("@[N/A,200,,400,off,-2]"), of(None, list(&clocks)));
    assert_eq!(load("N/A%@[0,300]"), of(None, list(&[Some(0.0), Some(300.0)])));
    assert_eq!(load("101%@400"), of(None, ClockRate::One(400.0)), "no load is more than all");
    let line = parse("RAM 1/2MB GR3D_FREQ 20%@[200,300 EMC_FREQ 30%@[-1,5] APE 25").unwrap();
    assert_eq!(line.gpu, of(Some(20.0), ClockRate::Unknown), "the list has no end");
    assert_eq!(line.emc, of(Some(30.0), list(&[None, Some(5.0)])));
    assert_eq!(line.engines.len(), 1);
    let line = parse("RAM 1/2MB GR3D_FREQ EMC_FREQ 30% VDD_GPU VIN 5.5mW/6mW").unwrap();
    assert_eq!((line.gpu, line.emc.and_then(|emc| emc.util)), (None, Some(30.0)));
    assert_eq!(line.power_mw, [("VIN", RailPower { cur: 5.5, avg: Some(6.0), peak: None })]);
    let sample = parse("RAM 1/2MB GR3D_FREQ @[N/A,200]").unwrap().to_sample();
    assert_eq!(sample.gpus[0].mhz, Some(200.0));
}

#[test]
fn cores_have_fractions_and_gaps() {
    let cpu = |list: &str| parse(&format!("RAM 1/2MB CPU {list}")).unwrap().cpu;
    let on = |util, mhz| TegraCpu { online: true, util, mhz };
    let cores = cpu("[12.5%@1510, off,N/A,7%@-1,N/A%@900,-1%@5]").unwrap();
    let (off, unknown) = (TegraCpu::default(), on(None, None));
    assert_eq!(cores[..4], [on(Some(12.5), Some(1510.0)), off, unknown, on(Some(7.0), None)]);
    assert_eq!(cores[4..], [on(None, Some(900.0)), on(None, Some(5.0))]);
    let line = parse("CPU [12.5%@1510,N/A,7%@-1]").unwrap();
    assert_eq!(line.cpu_mean_online(), Some(9.75), "over those whose load is known");
    assert_eq!(cpu("[1%,N/A]@N/A").unwrap(), [on(Some(1.0), None), unknown]);
    for none in ["[]", "[1%,]", "[8/8]", "[1%@x]", "[busy,off]", "[1%]x", "[1%@5"] {
        assert_eq!(cpu(none), None, "{none}");
    }
}

/// Forms that boards and releases print, each with what tells it from the others.
#[test]
fn boards_of_every_age_are_read() {
    let tk1 = parse(
        "RAM 714/1876MB (lfb 139x4MB) cpu [25%,7%,1%,1%]@2218 EMC 3%@924 VDE 120 \
        GR3D 0%@252 EDP limit 0",
    );
    let tk1 = tk1.unwrap();
    assert_eq!(tk1.cpu_mean_online(), Some(8.5));
    assert_eq!(tk1.gpu.unwrap().mhz, ClockRate::One(252.0));
    assert_eq!(tk1.engines.len(), 1, "{:?}", tk1.engines);

    let tx2 = parse(
        "RAM 9/99MB (lfb 1x512kB) CPU [2%@35,4%@34] SWAP 1/10MB (cached 7MB) \
        GPU@-51C MTS fg 3% bg 9% NVENC 716 VDD_DDR 27/27",
    )
    .unwrap();
    assert_eq!(
        (tx2.lfb_block_kb, tx2.swap_used_mb, tx2.swap_cached_mb),
        (Some(512), Some(1), Some(7))
    );
    assert_eq!(tx2.temps_c, [("GPU", Some(-51.0))]);
    assert_eq!(tx2.mts, Some(Mts { fg: 3.0, bg: 9.0 }));
    assert_eq!((tx2.engines.len(), tx2.power_mw.len()), (1, 1));

    let drive = parse("RAM 9/99MB (lfb 6x4MB) cpu [3%@19] GR3D 7%@140 GR3D_PCI 50%@1500").unwrap();
    assert_eq!(drive.gpu.as_ref().unwrap().util, Some(7.0));
    let card = EngineLoad { off: false, util: Some(50.0), mhz: ClockRate::One(1500.0) };
    assert_eq!((&drive.gpu2, drive.gpu_pci.as_ref()), (&None, Some(&card)));
    let both = parse("RAM 9/99MB GR3D2_FREQ 3%@4 GR3D_PCI 5%@6").unwrap();
    let loads = [both.gpu2.clone(), both.gpu_pci.clone()].map(|load| load.and_then(|l| l.util));
    assert_eq!(loads, [Some(3.0), Some(5.0)], "neither takes the other's place");
    let gpus = drive.to_sample().gpus;
    let seen: Vec<_> = gpus.iter().map(|gpu| (gpu.unified, gpu.percent)).collect();
    assert_eq!(seen, [(true, Some(7.0)), (false, Some(50.0))]);

    let orin = parse(
        "RAM 9/99MB GR3D_FREQ 0%@[764,0] NVJPG1 729 \
        PVA0_FREQ [63%,12%]@1011 VIC 0%@115 gpu@-256C/-256C",
    );
    let orin = orin.unwrap();
    assert_eq!(orin.gpu.unwrap().mhz, ClockRate::Many(vec![Some(764.0), Some(0.0)]));
    let names: Vec<_> = orin.engines.iter().map(|(name, load)| (*name, load.util)).collect();
    assert_eq!(names, [("NVJPG1", None), ("PVA0_FREQ", None), ("VIC", Some(0.0))]);
    assert_eq!((orin.temps_c, orin.temps_peak_c), (vec![("gpu", None)], vec![("gpu", None)]));

    let thor = parse(
        "RAM 9/99MB CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ @[1,1,1] \
        OFA_FREQ @0 VDD_GPU 6mW/6mW/7mW VIN 8mW",
    )
    .unwrap();
    assert_eq!(thor.gpu.as_ref().unwrap().util, None);
    assert_eq!(thor.emc.as_ref().unwrap().mhz, ClockRate::One(4266.0));
    assert_eq!(thor.engines[0].1, EngineLoad { off: false, util: None, mhz: ClockRate::One(0.0) });
    assert_eq!((thor.power_mw[0].1.peak, thor.total_power_mw()), (Some(7.0), Some(8.0)));
}

#[test]
fn old_boards_have_one_clock_for_all_cores() {
    let line = parse("RAM 1/2MB cpu [1%,off,3%]@-1 EDP limit 0").unwrap();
    let cpu = line.cpu.unwrap();
    assert_eq!(cpu[0], TegraCpu { online: true, util: Some(1.0), mhz: None });
    assert_eq!(cpu[1], TegraCpu { online: false, util: None, mhz: None });
    assert!(line.engines.is_empty());
    let line = parse("CPU [1%,2%]@1900").unwrap();
    assert_eq!(line.cpu.unwrap()[1].mhz, Some(1900.0));
    assert_eq!(parse("CPU[1%@5,2%@5] GR3D_FREQ 3%").unwrap().cpu_mean_online(), Some(1.5));
    assert!(parse("CPU[busy]").is_err());
}

#[test]
fn a_board_without_a_feeding_rail_has_no_total() {
    let total = |text: &str| parse(&format!("RAM 1/2MB {text}")).unwrap().total_power_mw();
    assert_eq!(total("VDD_GPU_SOC 100/100 VIN_SYS_5V0 200/200"), None);
    assert_eq!(total("VIN_SYS_5V0 200/200 VIN 900/900"), Some(900.0));
    assert_eq!(total("GPU 1/1 CPU 2/2 SOC 3/3 CV 0/0 VDDRQ 4/4 SYS5V 5/5"), Some(15.0));
    assert_eq!(total("GPU 1/1 CPU 2/2 SOC 3/3 CV 0/0 VDDRQ 4/4"), None, "one of six is missing");
}

#[test]
fn a_loggers_date_is_a_clock_and_no_timestamp() {
    let line = parse("[2026-06-01T12:00:05.250] host: RAM 1/2MB").unwrap();
    assert_eq!((line.timestamp, line.clock_s), (None, Some(1_780_315_205.25)));
    let line = parse("13-01-2026 12:00:05 RAM 1/2MB").unwrap();
    assert_eq!((line.timestamp, line.clock_s), (None, None), "there is no thirteenth month");
    assert_eq!(parse("<6>tegra: RAM 1/2MB").unwrap().timestamp, None);
}

#[test]
fn garbage_is_bounded_and_does_no_harm() {
    let many: String = (0..1500).map(|n| format!("T{n}@1C ")).collect();
    let line = format!("RAM 1/2MB {many}");
    assert!(parse(&line[..line.len().min(16_000)]).unwrap().temps_c.len() <= 128);
    for text in ["[".repeat(9000), "RAM 1/2MB ".repeat(900), "(lfb ".repeat(3000)] {
        let _ = parse(&text);
    }
    let huge = "CPU 9223372036854775807/1 GPU 9223372036854775807/1";
    assert!(parse(&format!("RAM 99999999999999999999/1MB {huge}")).is_err());
    let text = format!("RAM 1/1MB {huge} VIN -5/5");
    let power = parse(&text).unwrap();
    assert_eq!(power.power_mw.len(), 1);
}
