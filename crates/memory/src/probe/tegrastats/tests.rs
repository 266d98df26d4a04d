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
    assert_eq!((gpu.util, &gpu.mhz), (Some(75.0), &Clock::Many(vec![612.0, 610.0])));
    let names: Vec<&str> = line.engines.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["NVDEC", "VIC", "APE"]);
    assert!(line.engines[0].1.off);
    assert_eq!(line.engines[2].1.mhz, Clock::One(200.0));
    assert_eq!(line.temps_c, [("cpu", Some(50.5)), ("gpu", None), ("tj", Some(-3.25))]);
    assert_eq!(line.temps_peak_c, [("cpu", Some(51.0))]);
    let power = Power { cur: 8000, avg: Some(7000), peak: Some(9000) };
    assert_eq!(line.power_mw[0], ("VDD_IN", power));
    assert_eq!(line.power_mw[1].1, Power { cur: 1500, avg: None, peak: None });
    assert_eq!(line.power_mw.len(), 2, "pins that are not connected are no rails");
    assert_eq!(line.total_power_mw(), Some(8000));
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
    assert_eq!(line.power_mw, [("vdd_cam", Power { cur: 7, avg: Some(8), peak: None })]);
    assert!(line.engines.is_empty(), "{:?}", line.engines);
}

#[test]
fn clocks_and_loads_come_in_every_form() {
    let load = |word: &str| parse(&format!("RAM 1/2MB GR3D_FREQ {word}")).unwrap().gpu;
    let of = |util, mhz| Some(Load { off: false, util, mhz });
    assert_eq!(load("12%"), of(Some(12.0), Clock::Unknown));
    assert_eq!(load("12%@600"), of(Some(12.0), Clock::One(600.0)));
    assert_eq!(load("12%@[600, 610]"), of(Some(12.0), Clock::Many(vec![600.0, 610.0])));
    assert_eq!(load("@[600]"), of(None, Clock::Many(vec![600.0])));
    assert_eq!(load("@600"), of(None, Clock::One(600.0)));
    assert_eq!(load("600"), of(None, Clock::One(600.0)));
    for none in ["off", "N/A", "%", "@", "x%", "-5%", "12%@[a]", "12%@x"] {
        assert_eq!(load(none), None, "{none}");
    }
}

#[test]
fn old_boards_have_one_clock_for_all_cores() {
    let line = parse("RAM 1/2MB cpu [1%,off,3%]@-1 EDP limit 0").unwrap();
    let cpu = line.cpu.unwrap();
    assert_eq!(cpu[0], Cpu { online: true, util: Some(1), mhz: None });
    assert_eq!(cpu[1], Cpu { online: false, util: None, mhz: None });
    assert!(line.engines.is_empty());
    let line = parse("CPU [1%,2%]@1900").unwrap();
    assert_eq!(line.cpu.unwrap()[1].mhz, Some(1900));
    assert_eq!(parse("CPU[1%@5,2%@5] GR3D_FREQ 3%").unwrap().cpu_mean_online(), Some(1.5));
    assert!(parse("CPU[busy]").is_err());
}

#[test]
fn a_board_without_a_feeding_rail_has_no_total() {
    let total = |text: &str| parse(&format!("RAM 1/2MB {text}")).unwrap().total_power_mw();
    assert_eq!(total("VDD_GPU_SOC 100/100 VIN_SYS_5V0 200/200"), None);
    assert_eq!(total("VIN_SYS_5V0 200/200 VIN 900/900"), Some(900));
    assert_eq!(total("GPU 1/1 CPU 2/2 SOC 3/3 CV 0/0 VDDRQ 4/4 SYS5V 5/5"), Some(15));
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
