//! The forecast on series that it was not tuned on: generated, by seeds that were first used
//! here. An alarm is a forecast of 30 seconds or less, as `--alert-within 30s` asks for.

use plimsoll_machine::Bytes;
use plimsoll_machine::probe::Forecast;

const TOTAL: f64 = 7607.0;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
    /// Close to a bell curve of width 1.
    fn noise(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// When the first alarm of 30 s comes, over a series in MiB.
fn first_alarm(series: &[(f64, f64)], total: f64) -> Option<f64> {
    let mut forecast = Forecast::default();
    series.iter().find_map(|(t, used)| {
        let used = Bytes((used.clamp(0.0, total) * (1 << 20) as f64) as u64);
        let left = forecast.push(*t, used, Bytes((total * (1 << 20) as f64) as u64))?;
        (left.seconds <= 30.0).then_some(*t)
    })
}

fn alarms(series: impl Iterator<Item = (f64, f64)>) -> usize {
    let mut forecast = Forecast::default();
    let (mut count, mut last) = (0, f64::MIN);
    for (t, used) in series {
        let used = Bytes((used.clamp(0.0, TOTAL) * (1 << 20) as f64) as u64);
        let left = forecast.push(t, used, Bytes((TOTAL * (1 << 20) as f64) as u64));
        if left.is_some_and(|left| left.seconds <= 30.0) {
            if t - last > 60.0 {
                count += 1;
            }
            last = t;
        }
    }
    count
}

/// A calm start, growth by `shape` (from 0 to 1 over `length` seconds), until it is full.
fn grows(
    rng: &mut Rng,
    dt: f64,
    calm: f64,
    length: f64,
    noise: f64,
    shape: &dyn Fn(f64) -> f64,
) -> (Vec<(f64, f64)>, f64) {
    let start = rng.between(0.3, 0.65) * TOTAL;
    let mut series = Vec::new();
    let mut t = 0.0;
    loop {
        let x = ((t - calm) / length).max(0.0);
        let used = start + (TOTAL - start) * shape(x);
        if used >= TOTAL || x > 1.5 {
            return (series, t);
        }
        series.push((t, used + noise * rng.noise()));
        t += dt;
    }
}

fn growth(kind: &str, seed: u64) -> (Vec<(f64, f64)>, f64) {
    let mut rng = Rng(seed);
    let dt = [0.5, 1.0, 1.0, 2.0][(rng.next() * 4.0) as usize % 4];
    let calm = rng.between(0.0, 120.0);
    let length = rng.between(45.0, 400.0);
    match kind {
        "ramp" => grows(&mut rng, dt, calm, length, 4.0, &|x| x),
        "noisy" => {
            let noise = rng.between(30.0, 150.0);
            grows(&mut rng, dt, calm, length, noise, &|x| x)
        }
        "stairs" => {
            let steps = rng.between(8.0, 20.0).round();
            grows(&mut rng, dt, calm, length, 4.0, &move |x| (x * steps).floor() / steps)
        }
        "uneven stairs" => {
            // Each step and each rest is from half to three halves of the usual.
            let steps = rng.between(8.0, 20.0).round() as usize;
            let mut edges = vec![(0.0, 0.0)];
            for at in 0..steps {
                let (t, high): (f64, f64) = edges[at];
                edges.push((t + rng.between(0.5, 1.5), high + rng.between(0.5, 1.5)));
            }
            let (length_of_all, all) = edges[steps];
            grows(&mut rng, dt, calm, length, 4.0, &move |x| {
                let passed = edges.iter().take_while(|(t, _)| *t <= x * length_of_all);
                passed.last().map_or(0.0, |(_, high)| high / all)
            })
        }
        "accelerating" => {
            let power = rng.between(1.5, 3.0);
            grows(&mut rng, dt, calm, length, 4.0, &move |x| x.powf(power))
        }
        _ => {
            let rate = rng.between(1.0, 3.0);
            grows(&mut rng, dt, calm, length, 4.0, &move |x| {
                ((rate * x).exp() - 1.0) / (rate.exp() - 1.0)
            })
        }
    }
}

/// How far ahead of its end the first alarm of a series comes.
fn lead(series: &[(f64, f64)], end: f64) -> Option<f64> {
    first_alarm(series, TOTAL).map(|t| end - t)
}

#[test]
fn growth_is_told_twenty_seconds_ahead() {
    for kind in ["ramp", "noisy", "stairs", "uneven stairs", "accelerating", "exponential"] {
        for seed in 77_000..77_040 {
            let (series, end) = growth(kind, seed);
            let lead = lead(&series, end);
            assert!(lead.is_some_and(|lead| lead >= 20.0), "{kind} {seed}: {lead:?} of {end}");
        }
    }
}

/// A real way to an out-of-memory kill on an Orin Nano: 245 MB a request, killed at 7,422.
#[test]
fn the_orin_nanos_way_to_the_end_is_told_twenty_seconds_ahead() {
    for dt in [0.1, 0.5, 1.0, 2.0, 3.0] {
        for calm in [0.0, 30.0, 300.0] {
            for phase in [0.0, 2.0, 4.0] {
                let end: f64 = calm + 65.0;
                let times = (0..).map(|i| f64::from(i) * dt).take_while(|t| *t <= end);
                let used = |t: f64| 4822.0 + 245.0 * ((t - calm + phase) / 6.125).floor().max(0.0);
                let series: Vec<_> = times.map(|t| (t, used(t).min(7422.0))).collect();
                let lead = lead(&series, end);
                let told = lead.is_some_and(|lead| (20.0..=50.0).contains(&lead));
                assert!(told, "every {dt} s after {calm} s, phase {phase}: {lead:?}");
            }
        }
    }
}

#[test]
fn a_day_of_calm_has_at_most_one_alarm() {
    let mut told = Vec::new();
    for kind in ["flat", "wander", "saw", "step", "cache"] {
        for seed in 88_000..88_005 {
            told.extend(std::iter::repeat_n((kind, seed), alarms(calm(kind, seed))));
        }
    }
    assert!(told.len() <= 1, "{told:?}");
}

/// A tooth that points at the end cannot be told from a ramp the first time.
#[test]
fn a_steep_sawtooth_is_believed_once() {
    for period in [20.0, 35.0, 50.0] {
        let used = move |t: f64| 3000.0 + 3500.0 * (t / period).fract();
        let told = alarms((0..7200).map(|t| (f64::from(t), used(f64::from(t)))));
        assert!(told <= 1, "{told} alarms at a period of {period} s");
    }
}

/// Nor can a rise that falls as slowly; a long window must not go on rising after its turn.
#[test]
fn a_wave_with_straight_flanks_is_believed_once() {
    for (period, high) in [(26.0, 6300.0), (50.0, 6900.0), (230.0, 6600.0), (1500.0, 7360.0)] {
        let share = move |t: f64| 1.0 - (2.0 * (t / period).fract() - 1.0).abs();
        let used = |t: f64| 1500.0 + (high - 1500.0) * share(t);
        let told = alarms((0..14_400).map(|i| (f64::from(i) * 0.5, used(f64::from(i) * 0.5))));
        assert!(told <= 1, "{told} alarms at a period of {period} s");
    }
}

/// Models that are loaded and dropped again, each in a few seconds.
#[test]
fn steps_up_and_down_raise_nothing() {
    let mut rng = Rng(5151);
    let (mut at, mut to, mut rate, mut next) = (2000.0, 2000.0, 0.0, 300.0);
    let series = (0..86_400).map(|i| {
        let t = f64::from(i) * 0.5;
        if t >= next {
            to = rng.between(0.15, 0.95) * TOTAL;
            rate = (to - at).abs() / rng.between(0.5, 10.0);
            next = t + rng.between(120.0, 1200.0);
        }
        at += (to - at).clamp(-rate * 0.5, rate * 0.5);
        (t, at + 8.0 * rng.noise())
    });
    let told = alarms(series);
    assert!(told <= 1, "{told} alarms in 12 hours");
}

#[test]
fn the_guess_is_right_and_knows_how_sure_it_is() {
    let mut forecast = Forecast::default();
    let mut rng = Rng(4711);
    let (mut inside, mut all) = (0, 0);
    for t in 0..200 {
        let t = f64::from(t);
        let used = 2000.0 + 25.0 * t + 40.0 * rng.noise();
        let mib = |n: f64| Bytes((n * f64::from(1 << 20)) as u64);
        let Some(left) = forecast.push(t, mib(used), mib(TOTAL)) else { continue };
        let truth = (TOTAL - 2000.0 - 25.0 * t) / 25.0;
        all += 1;
        inside += u32::from(
            left.at_least <= truth && left.at_most.is_none_or(|most| most + 10.0 >= truth),
        );
        assert!((left.seconds - truth).abs() < 15.0 + 0.3 * truth, "{t}: {left:?}, truth {truth}");
    }
    assert!(all > 150 && inside * 10 >= all * 9, "{inside} of {all}");
}

#[test]
fn clocks_that_jump_and_sizes_that_change_do_no_harm() {
    let mut forecast = Forecast::default();
    let times = [0.0, 1.0, 1.0, 5e9, -3.0, f64::MAX, 0.0, 1e-300, 2.0, 1e18];
    for (at, t) in times.into_iter().cycle().take(5000).enumerate() {
        let total = Bytes(at as u64 % 3 * 1000);
        forecast.push(t, Bytes(at as u64), total);
    }
    assert_eq!(forecast.push(1.0, Bytes(1), Bytes(1 << 40)), None);
}

#[test]
fn it_knows_whether_samples_are_close_enough_to_tell() {
    let ramp = |step: f64| {
        let mut forecast = Forecast::default();
        let used = |i: u64| Bytes::mib(2000 + 50 * i);
        let told = (0..60)
            .filter_map(|i| forecast.push(i as f64 * step, used(i), Bytes::mib(TOTAL as u64)));
        (told.count() > 0, forecast.has_enough())
    };
    assert_eq!(ramp(Forecast::LONGEST_STEP.as_secs_f64()), (true, true));
    assert_eq!(ramp(2.5 * Forecast::LONGEST_STEP.as_secs_f64()), (false, false));
}

fn calm(kind: &str, seed: u64) -> Box<dyn Iterator<Item = (f64, f64)>> {
    let mut rng = Rng(seed);
    let dt = [0.5, 1.0, 1.0, 2.0][(rng.next() * 4.0) as usize % 4];
    let n = (3600.0 / dt) as usize;
    let level = rng.between(0.2, 0.93) * TOTAL;
    let noise = rng.between(1.0, 0.3 * (TOTAL - level).min(400.0));
    let times = (0..n).map(move |i| i as f64 * dt);
    match kind {
        "flat" => Box::new(times.map(move |t| (t, level + noise * rng.noise()))),
        "wander" => {
            let mut at = 0.0;
            Box::new(times.map(move |t| {
                at = 0.995 * at + 3.0 * rng.noise();
                (t, level * 0.9 + at)
            }))
        }
        "saw" => {
            let base = rng.between(0.2, 0.5) * TOTAL;
            let peak = rng.between(0.6, 0.9) * TOTAL;
            let period = rng.between(5.0, 600.0);
            let jitter = rng.between(0.0, 60.0);
            let mut phase = 0.0;
            let mut top = peak;
            Box::new(times.map(move |t| {
                phase += dt / period;
                if phase >= 1.0 {
                    phase -= 1.0;
                    top = peak + jitter * rng.noise();
                }
                (t, base + (top - base) * phase + 3.0 * rng.noise())
            }))
        }
        "step" => {
            let at = rng.between(100.0, 3000.0);
            let length = rng.between(0.0, 8.0);
            let low = rng.between(0.2, 0.5) * TOTAL;
            let high = rng.between(0.6, 0.95) * TOTAL;
            Box::new(times.map(move |t| {
                (
                    t,
                    low + (high - low) * ((t - at) / length.max(1e-9)).clamp(0.0, 1.0)
                        + 4.0 * rng.noise(),
                )
            }))
        }
        _ => {
            let low = rng.between(0.2, 0.5) * TOTAL;
            let high = rng.between(0.6, 0.95) * TOTAL;
            let tau = rng.between(30.0, 300.0);
            Box::new(times.map(move |t| {
                (t, low + (high - low) * (1.0 - (-t / tau).exp()) + 4.0 * rng.noise())
            }))
        }
    }
}
