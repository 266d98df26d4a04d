//! The charge of a device as it goes, kept by what is shown of it: as many points as a plot has,
//! and the most that lasted.

use std::collections::VecDeque;

use plimsoll_bench::stats::TimePoint;

const GIB: f64 = (1u64 << 30) as f64;
/// Points of a plot at most: as many as can be told apart.
const POINTS: usize = 480;
/// What one who looks now and then, as nvidia-smi does, can see.
const LASTING: f64 = 0.02;

/// The course of a device's charge.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) now: u64,
    until: f64,
    thin: Thin,
    lasting: Lasting,
}

impl Course {
    /// One that begins with nothing, of a run that lasted so long.
    pub(super) fn new(until: f64) -> Course {
        let slice = (until / POINTS as f64).max(1e-6);
        let points = vec![TimePoint { t: 0.0, min: 0.0, mean: 0.0, max: 0.0 }];
        let thin = Thin { slice, points, now: 0.0, open: Slice::new(0.0) };
        Course { now: 0, until, thin, lasting: Lasting::new(LASTING) }
    }

    /// From then on so much is charged.
    pub(super) fn step(&mut self, at: f64, charge: u64) {
        self.now = charge;
        self.thin.step(at, charge as f64 / GIB);
        self.lasting.step(at, charge);
    }

    /// The end of the run: what a plot shows, and the most that was charged for 20 ms.
    pub(super) fn finish(mut self) -> (Vec<TimePoint>, u64) {
        self.lasting.step(self.until, 0);
        (self.thin.finish(), self.lasting.most)
    }
}

/// A course of steps as points that a plot can show: least, mean and most of each slice.
#[derive(Debug)]
struct Thin {
    slice: f64,
    points: Vec<TimePoint>,
    now: f64,
    open: Slice,
}

#[derive(Debug)]
struct Slice {
    least: f64,
    most: f64,
    sum: f64,
    count: f64,
}

impl Slice {
    fn new(now: f64) -> Slice {
        Slice { least: now, most: now, sum: now, count: 1.0 }
    }
}

impl Thin {
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

    /// When the slice ends that is open.
    fn until(&self) -> f64 {
        self.points.len() as f64 * self.slice
    }

    fn close(&mut self) {
        let Slice { least, most, sum, count } = self.open;
        self.points.push(TimePoint { t: self.until(), min: least, mean: sum / count, max: most });
        self.open = Slice::new(self.now);
    }

    fn finish(mut self) -> Vec<TimePoint> {
        while self.points.len() <= POINTS {
            self.close();
        }
        self.points
    }
}

/// The most that was charged for so long at a stretch.
#[derive(Debug)]
struct Lasting {
    seconds: f64,
    most: u64,
    /// Levels that rise, with the time since when at least so much was charged. What lies below
    /// the most so far matters no more.
    rising: VecDeque<(f64, u64)>,
}

impl Lasting {
    fn new(seconds: f64) -> Lasting {
        Lasting { seconds, most: 0, rising: VecDeque::new() }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As it was told from the whole course, which must be the same.
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
        let mut lasting = Lasting::new(seconds);
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
        let mut ramp = Lasting::new(0.02);
        (0..1_000_000).for_each(|step| ramp.step(f64::from(step) * 1e-5, u64::from(step as u32)));
        assert!(ramp.rising.len() < 3000, "{}", ramp.rising.len());
    }

    #[test]
    fn a_course_becomes_points_that_keep_its_peak() {
        let mut course = Course::new(1.0);
        for (at, charge) in [(0.1, 1), (0.100001, 3), (0.100002, 1), (0.9, 0), (1.5, 9)] {
            course.step(at, charge << 30);
        }
        let (points, _) = course.finish();
        assert_eq!(points.len(), POINTS + 1);
        let most = points.iter().map(|point| point.max).fold(0.0, f64::max);
        assert!((most - 3.0).abs() < 1e-9, "{most}");
        assert_eq!(points.last().map(|point| point.max), Some(0.0));
    }
}
