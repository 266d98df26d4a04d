//! The charge of a device over time, reduced to what a report shows: as many points as a plot can
//! show, and the highest charge that lasted.

use std::collections::VecDeque;

const GIB: f64 = (1u64 << 30) as f64;
/// The most points of a plot: more cannot be told apart.
const POINTS: usize = 480;
/// How long a charge must last, in seconds, so that a tool that samples (nvidia-smi) can see it.
const LASTING: f64 = 0.02;

/// The charge of a device over time.
#[derive(Debug, Default)]
pub struct ChargeCourse {
    /// The points of a plot.
    pub points: Vec<ChargePoint>,
    /// The highest charge that lasted for 20 ms.
    pub lasting_peak: u64,
}

/// The charge of a device in one interval, in GiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChargePoint {
    /// The end of the interval, in seconds since the start.
    pub seconds: f64,
    /// The lowest charge in it.
    pub min: f64,
    /// The mean of the charges in it.
    pub mean: f64,
    /// The highest charge in it.
    pub max: f64,
}

/// Reduces the charge of a device, change by change.
#[derive(Debug)]
pub(super) struct CourseBuilder {
    pub(super) now: u64,
    until: f64,
    plot: PlotPoints,
    lasting: LastingPeak,
}

impl CourseBuilder {
    /// Begins with no charge, for a run that was watched for this many seconds.
    pub(super) fn new(until: f64) -> CourseBuilder {
        let slice = (until / POINTS as f64).max(1e-6);
        let points = vec![ChargePoint { seconds: 0.0, min: 0.0, mean: 0.0, max: 0.0 }];
        let plot = PlotPoints { slice, points, now: 0.0, open: PlotSlice::new(0.0) };
        CourseBuilder { now: 0, until, plot, lasting: LastingPeak::new(LASTING) }
    }

    /// Sets the charge from this time on.
    pub(super) fn step(&mut self, at: f64, charge: u64) {
        self.now = charge;
        self.plot.step(at, charge as f64 / GIB);
        self.lasting.step(at, charge);
    }

    /// Ends the run.
    pub(super) fn finish(mut self) -> ChargeCourse {
        self.lasting.step(self.until, 0);
        ChargeCourse { points: self.plot.finish(), lasting_peak: self.lasting.most }
    }
}

/// The points of a plot: lowest, mean and highest charge of each slice of time.
#[derive(Debug)]
struct PlotPoints {
    slice: f64,
    points: Vec<ChargePoint>,
    now: f64,
    open: PlotSlice,
}

#[derive(Debug)]
struct PlotSlice {
    least: f64,
    most: f64,
    sum: f64,
    count: f64,
}

impl PlotSlice {
    fn new(now: f64) -> PlotSlice {
        PlotSlice { least: now, most: now, sum: now, count: 1.0 }
    }
}

impl PlotPoints {
    fn step(&mut self, at: f64, charge: f64) {
        while self.points.len() <= POINTS && at > self.until() {
            self.close();
        }
        self.now = charge;
        let open = &mut self.open;
        open.least = open.least.min(charge);
        open.most = open.most.max(charge);
        open.sum += charge;
        open.count += 1.0;
    }

    /// When the current slice ends.
    fn until(&self) -> f64 {
        self.points.len() as f64 * self.slice
    }

    fn close(&mut self) {
        let PlotSlice { least, most, sum, count } = self.open;
        self.points.push(ChargePoint {
            seconds: self.until(),
            min: least,
            mean: sum / count,
            max: most,
        });
        self.open = PlotSlice::new(self.now);
    }

    fn finish(mut self) -> Vec<ChargePoint> {
        while self.points.len() <= POINTS {
            self.close();
        }
        self.points
    }
}

/// The highest charge that lasted for this many seconds.
#[derive(Debug)]
struct LastingPeak {
    seconds: f64,
    most: u64,
    /// Rising levels of charge, each with the time since which at least that much was charged.
    /// Levels below the highest so far do not matter any more.
    rising: VecDeque<(f64, u64)>,
}

impl LastingPeak {
    fn new(seconds: f64) -> LastingPeak {
        LastingPeak { seconds, most: 0, rising: VecDeque::new() }
    }

    fn step(&mut self, at: f64, charge: u64) {
        let seconds = self.seconds;
        while let Some((_, level)) = self.rising.pop_front_if(|(from, _)| at - *from >= seconds) {
            self.most = self.most.max(level);
        }
        let mut since = at;
        while let Some((from, _)) = self.rising.pop_back_if(|(_, level)| *level >= charge) {
            since = from;
        }
        if charge > self.most {
            self.rising.push_back((since, charge));
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// The same from the whole course at once.
    fn from_all(course: &[(f64, u64)], until: f64, seconds: f64) -> u64 {
        let (mut most, mut rising) = (0, Vec::<(f64, u64)>::new());
        for (at, charge) in course.iter().copied().chain([(until, 0)]) {
            let mut since = at;
            while let Some((from, level)) = rising.pop_if(|(_, level)| *level >= charge) {
                since = from;
                if at - from >= seconds {
                    most = most.max(level);
                }
            }
            rising.push((since, charge));
        }
        most
    }

    fn lasting(course: &[(f64, u64)], until: f64, seconds: f64) -> u64 {
        let mut lasting = LastingPeak::new(seconds);
        course.iter().copied().chain([(until, 0)]).for_each(|(at, now)| lasting.step(at, now));
        lasting.most
    }

    #[test]
    fn a_moment_is_no_lasting_peak() {
        let course = [(0.0, 10), (1.0, 50), (1.01, 30), (2.0, 40), (2.02, 35), (3.0, 0)];
        assert_eq!(lasting(&course, 4.0, 0.0), 50);
        assert_eq!(lasting(&course, 4.0, 0.02), 40);
        assert_eq!(lasting(&course, 4.0, 0.03), 35);
        assert_eq!(lasting(&course, 4.0, 1.9), 30);
        assert_eq!(lasting(&course, 4.0, 2.5), 10);
        assert_eq!(lasting(&[(0.0, 7)], 1.0, 1.0), 7);
        assert_eq!(lasting(&[], 1.0, 0.0), 0);
    }

    #[test]
    fn what_lasted_is_exact_and_needs_little_memory() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut at = 0.0;
            let course: Vec<(f64, u64)> = (0..60)
                .map(|_| {
                    at += random(9) as f64 / 1000.0;
                    (at, random(20))
                })
                .collect();
            let seconds = random(40) as f64 / 1000.0;
            let expected = from_all(&course, at + 0.01, seconds);
            assert_eq!(lasting(&course, at + 0.01, seconds), expected, "{course:?} {seconds}");
        }
        let mut ramp = LastingPeak::new(0.02);
        (0..1_000_000).for_each(|step| ramp.step(f64::from(step) * 1e-5, u64::from(step as u32)));
        assert!(ramp.rising.len() < 3000, "{}", ramp.rising.len());
    }

    #[test]
    fn a_course_becomes_points_that_keep_its_peak() {
        let mut course = CourseBuilder::new(1.0);
        for (at, charge) in [(0.1, 1), (0.100001, 3), (0.100002, 1), (0.9, 0), (1.5, 9)] {
            course.step(at, charge << 30);
        }
        let points = course.finish().points;
        assert_eq!(points.len(), POINTS + 1);
        let most = points.iter().map(|point| point.max).fold(0.0, f64::max);
        assert!((most - 3.0).abs() < 1e-9, "{most}");
        assert_eq!(points.last().map(|point| point.max), Some(0.0));
    }
}
