//! The same sample from a machine's files, on recorded machines.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_machine::probe::{
    self, MachineSample, Probe, ProbeKind, ProbeSettings, Sampler, TakenSample, look,
};
use plimsoll_machine::{Bytes, Error};

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(name)
}

/// A machine that cannot be looked at has nothing of what is expected.
fn sample(name: &str) -> MachineSample {
    look(tree(name), &ProbeKind::ALL).unwrap_or_default()
}

fn celsius(sample: &MachineSample, name: &str) -> Option<f64> {
    sample.temperatures.iter().find(|t| t.name == name).and_then(|t| t.celsius)
}

fn watts(sample: &MachineSample, name: &str) -> Option<f64> {
    sample.rails.iter().find(|rail| rail.name == name).and_then(|rail| rail.watts)
}

#[test]
fn a_nano_tells_by_iio_and_the_old_place_of_the_load() {
    let nano = sample("nano");
    assert_eq!(nano.is_unified(), Some(true));
    let gpu = &nano.gpus[0];
    assert_eq!((gpu.percent, gpu.mhz, gpu.max_mhz), (Some(37.2), Some(614.4), Some(921.6)));
    assert_eq!(gpu.used, Some(Bytes::mib(360)), "nvmap's share");
    assert_eq!((gpu.total, gpu.celsius), (None, Some(34.5)));
    assert_eq!(watts(&nano, "POM_5V_GPU"), Some(0.122));
    assert_eq!(nano.total_power_w, Some(2.625));
    assert_eq!((celsius(&nano, "PMIC"), celsius(&nano, "thermal")), (Some(100.0), Some(35.25)));
    assert_eq!(nano.throttled_by, Some(vec![]));
    assert_eq!(nano.memory.used(), Some(Bytes::kib(4_059_256 - 2_416_640)));
}

#[test]
fn a_xavier_has_six_rails_and_their_sum() {
    let xavier = sample("agx-xavier");
    assert_eq!(xavier.rails.len(), 6);
    assert!(xavier.total_power_w.is_some_and(|w| (w - 6.926).abs() < 1e-9));
    assert_eq!((xavier.gpus[0].percent, xavier.gpus[0].mhz), (Some(64.0), Some(670.0)));
    assert_eq!(xavier.power_mode.as_deref(), Some("MODE_15W"));
    assert_eq!(xavier.throttled_by, Some(vec!["gpu-balanced".to_string()]));
    let holds: Vec<_> = xavier.processes.iter().map(|p| (p.pid, p.gpu_bytes)).collect();
    assert_eq!(holds, [(4321, Some(Bytes::mib(768))), (987, Some(Bytes::mib(64)))]);
    let on = xavier.cores.iter().filter(|core| core.online).count();
    assert_eq!((xavier.cores.len(), on), (8, 4), "four are switched off");
    assert_eq!((xavier.cores[0].mhz, xavier.cores[5].mhz), (Some(1190.4), None));
}

#[test]
fn an_orin_nano_tells_by_hwmon_and_devfreq() {
    let orin = sample("orin-nano");
    let gpu = &orin.gpus[0];
    assert_eq!((gpu.percent, gpu.mhz, gpu.used), (Some(12.7), Some(306.0), Some(Bytes::mib(640))));
    assert_eq!(orin.rails.len(), 3, "what is not connected and the chip's sum are no rails");
    assert!(orin.total_power_w.is_some_and(|w| (w - 5.064 * 0.984).abs() < 1e-9));
    assert_eq!(orin.engines[0].name, "NVDEC");
    assert_eq!(orin.engines[0].mhz, Some(268.8));
    assert_eq!(orin.throttled_by, Some(vec![]), "events before the start are not now");
    assert_eq!(orin.largest_free, Some(Bytes(4096 << 10)));
}

#[test]
fn fans_are_told_by_how_far_they_are_driven_and_how_fast_they_turn() {
    let fans = |name: &str| -> Vec<_> {
        let fans = sample(name).fans.into_iter();
        fans.map(|fan| (fan.name, fan.percent.map(f64::round), fan.rpm)).collect()
    };
    let fan = |name: &str, percent, rpm| vec![(name.to_string(), Some(percent), Some(rpm))];
    assert_eq!(fans("orin-nano"), fan("pwmfan", 40.0, 2310.0), "two drivers tell of one fan");
    assert_eq!(fans("nano"), fan("pwm-fan", 100.0, 5100.0));
    assert_eq!(fans("server"), []);
    assert_eq!(sample("amd").gpus[1].fan_percent.map(f64::round), Some(50.0));
}

#[test]
fn an_agx_orin_with_its_gpu_asleep_tells_no_temperature_of_it() {
    let orin = sample("agx-orin");
    assert_eq!((orin.gpus[0].celsius, celsius(&orin, "gpu")), (None, None));
    assert!(orin.temperatures.iter().any(|t| t.name == "gpu"), "the sensor is there, and off");
    assert_eq!(orin.gpus[0].percent, Some(0.0));
    assert_eq!(orin.rails.len(), 4);
    assert_eq!(orin.total_power_w, None, "no rail feeds all of it");
    assert_eq!(orin.power_mode.as_deref(), Some("MODE_50W"));
}

#[test]
fn a_thor_has_no_nvmap_and_the_clock_of_its_graphics() {
    let thor = sample("thor");
    let gpu = &thor.gpus[0];
    assert_eq!((gpu.unified, gpu.used, gpu.percent), (true, None, None));
    assert_eq!(gpu.mhz, Some(1575.0), "not that of its video engines");
    assert_eq!(thor.total_power_w, None);
    assert!(watts(&thor, "VDD_GPU").is_some());
}

#[test]
fn amd_has_its_own_memory_on_a_card_and_the_systems_in_a_processor() {
    let amd = sample("amd");
    let (apu, card) = (&amd.gpus[0], &amd.gpus[1]);
    assert_eq!(card.name.as_deref(), Some("Radeon RX 7900 XTX"));
    assert_eq!(
        (card.unified, card.total, card.used),
        (false, Some(Bytes::mib(24_560)), Some(Bytes::gib(6)))
    );
    assert_eq!((card.percent, card.mhz, card.memory_mhz), (Some(87.0), Some(2371.0), Some(1249.0)));
    assert_eq!(
        (card.power_w, card.power_limit_w, card.celsius),
        (Some(284.0), Some(355.0), Some(61.0))
    );
    assert_eq!((apu.unified, apu.total, apu.used), (true, None, Some(Bytes::mib(128))));
    assert_eq!(apu.power_w, Some(12.5));
}

/// 1234 draws and computes on the card through a file that it has open twice; 77 shows the
/// desktop from the processor's GPU and copies to the card; 500 uses another driver.
#[test]
fn amd_tells_which_process_holds_what() -> Result<(), Error> {
    let settings = ProbeSettings { root: tree("amd"), ..ProbeSettings::default() };
    let mut amd = MachineSample::default();
    probe::open(ProbeKind::Amdgpu, &settings)?.read(&mut amd)?;
    let mut told: Vec<_> = amd
        .processes
        .iter()
        .map(|p| (p.pid, p.name.as_deref().unwrap_or("-"), p.gpu, p.gpu_bytes))
        .collect();
    told.sort_unstable();
    let expected = [
        (77, "Xorg", Some(0), Some(Bytes::mib(96))),
        (77, "Xorg", Some(1), Some(Bytes::mib(16))),
        (1234, "python3", Some(1), Some(Bytes::mib(5 * 1024 + 512))),
    ];
    assert_eq!(told, expected);
    Ok(())
}

#[test]
fn a_machine_without_them_says_why() {
    let settings = ProbeSettings { root: tree("desktop"), ..ProbeSettings::default() };
    for kind in [ProbeKind::Jetson, ProbeKind::Nvml, ProbeKind::Amdgpu, ProbeKind::Tegrastats] {
        let error = probe::open(kind, &settings).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("not available: ")), "{kind:?}");
    }
    assert!(!probe::usual(&tree("orin-nano")).contains(&ProbeKind::Tegrastats));
}

struct Hangs;

impl Probe for Hangs {
    fn read(&mut self, _: &mut MachineSample) -> Result<(), Error> {
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    }
}

/// Works twice, then is denied, then works again.
struct Falters(u32);

impl Probe for Falters {
    fn read(&mut self, sample: &mut MachineSample) -> Result<(), Error> {
        self.0 += 1;
        if (3..6).contains(&self.0) {
            let what = "a sensor".to_string();
            return Err(Error::Unavailable { what, why: "permission denied".to_string() });
        }
        sample.cpu_percent = Some(f64::from(self.0));
        Ok(())
    }
}

/// Answers after so long.
struct Slow(Duration);

impl Probe for Slow {
    fn read(&mut self, sample: &mut MachineSample) -> Result<(), Error> {
        std::thread::sleep(self.0);
        sample.cpu_percent = Some(1.0);
        Ok(())
    }
}

fn slow(millis: u64, interval: u64) -> Result<Sampler, Error> {
    let slow = Slow(Duration::from_millis(millis));
    let probes: Vec<(_, _, probe::Opener)> = vec![("slow", true, Box::new(|| Ok(Box::new(slow))))];
    Sampler::with(probes, Duration::from_millis(interval))
}

#[test]
fn a_probe_that_is_always_late_is_told_once_with_the_remedy() {
    let sampler = slow(600, 100).unwrap();
    let start = Instant::now();
    let mut warnings = Vec::new();
    let mut more = 20;
    while more > 0 && start.elapsed() < Duration::from_secs(60) {
        let Some(taken) = sampler.next(Duration::from_secs(60)) else { break };
        let seen = taken.sample.cpu_percent.is_some();
        assert_eq!(taken.late.contains(&"slow"), !seen, "what is missing is named: {taken:?}");
        more -= i32::from(!warnings.is_empty());
        warnings.extend(taken.warnings);
    }
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("slow: it answers too late, after "), "{warnings:?}");
    assert!(warnings[0].contains("such as --interval "), "{warnings:?}");
}

#[test]
fn a_sample_waits_for_a_probe_as_long_as_its_interval_is() {
    let sampler = slow(700, 2000).unwrap();
    for at in 0..2 {
        let taken = sampler.next(Duration::from_secs(60)).unwrap();
        assert_eq!((taken.sample.cpu_percent, taken.late), (Some(1.0), vec![]), "sample {at}");
    }
}

/// A source that was asked for by name and is not there is no empty sample.
#[test]
fn one_that_must_be_there_and_is_not_is_an_error() {
    let absent = |wanted| {
        let open: probe::Opener = Box::new(|| {
            let (what, why) = ("a sensor".to_string(), "no such board".to_string());
            Err(Error::Unavailable { what, why })
        });
        Sampler::with(vec![("sensor", wanted, open)], Duration::from_millis(100))
    };
    let refused = absent(true).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("no such board"), "{refused}");
    let taken = absent(false).unwrap().next(Duration::from_secs(60)).unwrap();
    assert_eq!(taken.warnings, [""; 0]);
}

struct Dies;

impl Probe for Dies {
    fn read(&mut self, _: &mut MachineSample) -> Result<(), Error> {
        std::panic::resume_unwind(Box::new("out of a driver"))
    }
}

#[test]
fn probes_that_hang_die_or_are_denied_stop_nothing() {
    let interval = Duration::from_millis(400);
    let sampler = Sampler::with(
        vec![
            ("hangs", true, Box::new(|| Ok(Box::new(Hangs)))),
            ("falters", true, Box::new(|| Ok(Box::new(Falters(0))))),
            ("dies", true, Box::new(|| Ok(Box::new(Dies)))),
            (
                "hangs when opened",
                true,
                Box::new(|| {
                    std::thread::sleep(Duration::from_secs(3600));
                    Ok(Box::new(Hangs))
                }),
            ),
        ],
        interval,
    )
    .unwrap();
    let mut taken = Vec::new();
    // A busy machine may be late with some.
    while taken.len() < 60 && !taken.iter().any(|taken| told(taken) >= Some(8.0)) {
        taken.push(sampler.next(Duration::from_secs(60)).unwrap());
    }
    let waited = taken.iter().filter(|taken| taken.took > Duration::from_secs(2)).count();
    assert!(waited <= 2, "a new probe is waited for once, not in each sample: {taken:?}");
    let warnings: Vec<&String> = taken.iter().flat_map(|taken| &taken.warnings).collect();
    assert_eq!(warnings.len(), 4, "each is told once: {warnings:?}");
    for word in ["hangs: it has not", "falters: ", "permission denied", "dies: it died"] {
        assert!(warnings.iter().any(|text| text.contains(word)), "{word}: {warnings:?}");
    }
    let seen: Vec<f64> = taken.iter().filter_map(told).collect();
    assert!(seen.is_sorted_by(|a, b| a < b), "nothing is told twice: {seen:?}");
    let before = taken.iter().rposition(|taken| told(taken).is_some_and(|told| told <= 2.0));
    let after = taken.iter().position(|taken| told(taken) >= Some(6.0)).unwrap();
    assert!(after - before.unwrap() > 3, "it is missing in each sample that it is denied in");
    let start = Instant::now();
    drop(sampler);
    assert!(start.elapsed() < Duration::from_secs(20));
}

fn told(taken: &TakenSample) -> Option<f64> {
    taken.sample.cpu_percent
}
