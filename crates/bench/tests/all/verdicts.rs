//! The comparison on made-up runs whose truth is known: identical things must not be told
//! apart, a slowdown of 10 % must be.

use plimsoll_bench::stats::verdict::{RUN_TO_RUN, SpeedVerdict, by_frames, by_repeats};

/// Numbers that look random and are the same everywhere.
struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (self.uniform().max(1e-300), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

type Maker = fn(&mut Dice, usize) -> Vec<f64>;

fn iid(dice: &mut Dice, n: usize) -> Vec<f64> {
    (0..n).map(|_| 10.0 * (0.05 * dice.normal()).exp()).collect()
}

fn autocorrelated(dice: &mut Dice, n: usize, phi: f64, size: f64) -> Vec<f64> {
    let step = (1.0 - phi * phi).sqrt();
    let mut state = dice.normal();
    let mut next = || {
        state = phi * state + step * dice.normal();
        10.0 * (size * state).exp()
    };
    (0..n).map(|_| next()).collect()
}

fn ar50(dice: &mut Dice, n: usize) -> Vec<f64> {
    autocorrelated(dice, n, 0.5, 0.05)
}

fn ar90(dice: &mut Dice, n: usize) -> Vec<f64> {
    autocorrelated(dice, n, 0.9, 0.05)
}

fn ar98(dice: &mut Dice, n: usize) -> Vec<f64> {
    autocorrelated(dice, n, 0.98, 0.05)
}

/// Every run climbs by the same 15 %.
fn warming(dice: &mut Dice, n: usize) -> Vec<f64> {
    let noise = iid(dice, n);
    noise.iter().enumerate().map(|(i, v)| v * (1.0 + 0.15 * i as f64 / n as f64)).collect()
}

/// Every run drifts its own way, by up to 15 % up or down.
fn drifting(dice: &mut Dice, n: usize) -> Vec<f64> {
    let slope = 0.3 * (dice.uniform() - 0.5);
    let noise = ar50(dice, n);
    noise.iter().enumerate().map(|(i, v)| v * (1.0 + slope * i as f64 / n as f64)).collect()
}

/// One frame of twenty is late by a Pareto tail.
fn heavy(dice: &mut Dice, n: usize) -> Vec<f64> {
    let late = |dice: &mut Dice, v: f64| match dice.uniform() < 0.05 {
        true => v * dice.uniform().max(1e-6).powf(-1.0 / 1.2),
        false => v,
    };
    iid(dice, n).into_iter().map(|v| late(dice, v)).collect()
}

/// Two levels, 20 % apart, that hold for a while each.
fn switching(dice: &mut Dice, n: usize) -> Vec<f64> {
    let mut high = dice.uniform() < 0.5;
    let mut values = iid(dice, n);
    for value in &mut values {
        high ^= dice.uniform() < 0.05;
        *value *= if high { 1.2 } else { 1.0 };
    }
    values
}

const MAKERS: [(&str, Maker); 8] = [
    ("iid", iid),
    ("ar 0.5", ar50),
    ("ar 0.9", ar90),
    ("ar 0.98", ar98),
    ("warming", warming),
    ("drifting", drifting),
    ("heavy", heavy),
    ("switching", switching),
];

fn verdicts(make: Maker, n: usize, factor: f64, pairs: u64) -> [u64; 3] {
    let mut counts = [0; 3];
    for pair in 0..pairs {
        let a = make(&mut Dice(pair << 1 | 1 << 40), n);
        let b: Vec<f64> =
            make(&mut Dice((pair << 1 | 1) << 20), n).iter().map(|v| v * factor).collect();
        match by_frames(&a, &b, RUN_TO_RUN).map_or(SpeedVerdict::CannotSay, |j| j.verdict) {
            SpeedVerdict::Faster => counts[0] += 1,
            SpeedVerdict::Slower => counts[1] += 1,
            SpeedVerdict::CannotSay => counts[2] += 1,
        }
    }
    counts
}

#[test]
fn identical_things_are_not_told_apart() {
    for (name, make) in MAKERS {
        for n in [50, 300, 2000] {
            let [faster, slower, unsure] = verdicts(make, n, 1.0, 200);
            println!("{name:>10} n={n:<5} faster {faster:>3} slower {slower:>3} unsure {unsure}");
            assert!(unsure >= 190, "{name}, {n} frames: {faster} faster, {slower} slower");
        }
    }
}

#[test]
fn a_tenth_slower_is_seen() {
    // `drifting`, `ar 0.98` and `switching` wander by more than 10 % on their own: what
    // they must not do is claim the opposite.
    for (name, make) in MAKERS {
        let [faster, slower, unsure] = verdicts(make, 300, 1.1, 200);
        println!("{name:>10} +10 %   faster {faster:>3} slower {slower:>3} unsure {unsure}");
        assert!(faster <= 2, "{name}: {faster} faster");
        if ["iid", "ar 0.5", "warming", "heavy"].contains(&name) {
            assert!(slower >= 190, "{name}: slower {slower}, unsure {unsure}");
        }
    }
}

#[test]
fn repeats_show_what_starts_differ_by() {
    let mut wrong = 0;
    let mut seen = 0;
    for seed in 0..1000u64 {
        let mut dice = Dice(seed << 8);
        let mut side = |factor: f64| -> Vec<f64> {
            (0..5).map(|_| factor * 10.0 * (0.02 * dice.normal()).exp()).collect()
        };
        let same = by_repeats(&side(1.0), &side(1.0)).expect("five repeats");
        wrong += u32::from(same.verdict != SpeedVerdict::CannotSay);
        let slow = by_repeats(&side(1.0), &side(1.1)).expect("five repeats");
        seen += u32::from(slow.verdict == SpeedVerdict::Slower);
    }
    println!("repeats: {wrong} of 1000 wrong, {seen} of 1000 slowdowns seen");
    assert!(wrong <= 50 && seen >= 900);
    assert!(by_repeats(&[1.0, 2.0], &[1.0, 2.0, 3.0]).is_none());
}

#[test]
fn too_little_is_no_verdict() {
    assert!(by_frames(&[1.0; 19], &[1.0; 300], 0.0).is_none());
    assert!(by_frames(&[], &[], 0.0).is_none());
    assert!(by_frames(&[0.0; 300], &[1.0; 300], 0.0).is_none());
    let same = by_frames(&[1.0; 300], &[1.0; 300], RUN_TO_RUN).expect("enough frames");
    assert_eq!(same.verdict, SpeedVerdict::CannotSay);
}
