//! Processor time, as the kernel counts it.

/// Time of a processor, or of all of them, in ticks of a hundredth of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticks {
    /// The processor's number; `None` for all of them together.
    pub core: Option<usize>,
    /// All time.
    pub all: u64,
    /// Time at work.
    pub busy: u64,
}

impl Ticks {
    /// All processors together, now.
    #[must_use]
    pub fn now() -> Option<Ticks> {
        parse(&std::fs::read_to_string("/proc/stat").ok()?)?.first().copied()
    }

    /// Time at work of this process alone.
    #[must_use]
    pub fn own() -> Option<u64> {
        parse_process(&std::fs::read_to_string("/proc/self/stat").ok()?).map(|found| found.ticks)
    }

    /// Load in percent since an earlier count.
    #[must_use]
    pub fn since(self, earlier: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        let busy = self.busy.saturating_sub(earlier.busy).min(all);
        Some(busy as f64 / all as f64 * 100.0)
    }
}

/// The lines `cpu` and `cpuN` of `/proc/stat`, all together first.
pub(super) fn parse(text: &str) -> Option<Vec<Ticks>> {
    let lines = text.lines().map_while(|line| line.strip_prefix("cpu"));
    let all: Vec<Ticks> = lines.filter_map(one).collect();
    all.first().filter(|first| first.core.is_none())?;
    Some(all)
}

fn one(line: &str) -> Option<Ticks> {
    let (number, rest) = line.split_once(' ')?;
    let core = if number.is_empty() { None } else { Some(number.parse().ok()?) };
    // user nice system idle iowait irq softirq steal; guest time is in user's already.
    let mut ticks = [0u64; 8];
    let mut count = 0;
    for (slot, word) in ticks.iter_mut().zip(rest.split_ascii_whitespace()) {
        *slot = word.parse().ok()?;
        count += 1;
    }
    let all = ticks.iter().fold(0u64, |sum, t| sum.saturating_add(*t));
    (count >= 4).then(|| Ticks {
        core,
        all,
        busy: all.saturating_sub(ticks[3]).saturating_sub(ticks[4]),
    })
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessStat<'a> {
    pub(super) name: &'a str,
    pub(super) ticks: u64,
    pub(super) resident_pages: u64,
    /// When it started, in ticks since the machine did.
    pub(super) start: u64,
    /// Whether it is a thread of the kernel.
    pub(super) kernel: bool,
}

/// The flag of the kernel's own threads.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The name in the middle may hold anything, brackets too.
pub(super) fn parse_process(text: &str) -> Option<ProcessStat<'_>> {
    let (start, rest) = text.rsplit_once(')')?;
    let name = start.split_once('(')?.1;
    let mut fields = rest.split_ascii_whitespace();
    let flags: u64 = fields.nth(6)?.parse().ok()?;
    let user: u64 = fields.nth(4)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let start = fields.nth(6)?.parse().ok()?;
    let resident_pages = fields.nth(1)?.parse().ok()?;
    let kernel = flags & KERNEL_THREAD != 0;
    Some(ProcessStat { name, ticks: user.saturating_add(system), resident_pages, start, kernel })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_the_kernel_writes_them() {
        let text = "cpu  10 1 5 80 4 0 0 0 3 0\ncpu0 1 1 1 1\ncpu3 0 0 5 5 0 0 0 0\nintr 9\n";
        let all = parse(text).unwrap();
        assert_eq!(all[0], Ticks { core: None, all: 100, busy: 16 });
        assert_eq!(all[1].core, Some(0));
        assert_eq!(all[2], Ticks { core: Some(3), all: 10, busy: 5 });
        assert_eq!(parse("cpu0 1 2"), None);
        assert_eq!(parse("intr 9"), None);
        assert_eq!(all[2].since(Ticks { core: Some(3), all: 0, busy: 0 }), Some(50.0));
        assert_eq!(all[2].since(all[2]), None);
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let text = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 1 0 3 9000 77 1";
        let (start, kernel) = (3, false);
        let found = ProcessStat { name: "a) b (c)", ticks: 12, resident_pages: 77, start, kernel };
        assert_eq!(parse_process(text), Some(found));
        let thread = text.replace("4194304", "2129984");
        assert!(parse_process(&thread).is_some_and(|found| found.kernel));
        assert_eq!(parse_process("42 (a"), None);
    }
}
