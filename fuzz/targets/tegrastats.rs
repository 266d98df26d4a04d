//! Any bytes as a line of tegrastats: refused, or a record whose figures hold together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll::probe::tegrastats::parse;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        let Ok(record) = parse(line) else { continue };
        assert!(record.ram_total_mb.is_some() || record.cpu.is_some());
        assert!(record.cpu_mean_online().is_none_or(|mean| (0.0..=100.0).contains(&mean)));
        assert!(record.total_power_mw().is_none_or(f64::is_finite));
        assert!(record.temps_c.iter().all(|(_, celsius)| celsius.is_none_or(|c| c != -256.0)));
        let sample = record.to_sample();
        assert_eq!(sample.temperatures.len(), record.temps_c.len());
    }
});
