use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// A program as the search sees it.
#[derive(Debug, Clone, Copy)]
enum ProgramMemory {
    /// A part that is always there, a part for each item, both rounded up to a grain.
    Line { fixed: u64, each: u64, grain: u64 },
    /// The items are taken in groups.
    Steps { fixed: u64, each: u64, group: u64 },
    /// Each item takes more than the one before it.
    Bend { fixed: u64, each: u64, square: u64 },
    /// It keeps this share more than it needs, in thousandths, and frees that when it is refused.
    Cache { fixed: u64, each: u64, kept: u64 },
    /// It takes everything at the start.
    Flat { most: u64 },
}

impl ProgramMemory {
    fn run(self, value: u64, room: u64) -> SearchPoint {
        let (need, held) = match self {
            ProgramMemory::Line { fixed, each, grain } => {
                let need = (fixed + each * value).next_multiple_of(grain);
                (need, need)
            }
            ProgramMemory::Steps { fixed, each, group } => {
                let need = fixed + each * value.next_multiple_of(group);
                (need, need)
            }
            ProgramMemory::Bend { fixed, each, square } => {
                let need = fixed + each * value + square * value * value;
                (need, need)
            }
            ProgramMemory::Cache { fixed, each, kept } => {
                (fixed + each * value, fixed + each * value * (1000 + kept) / 1000)
            }
            ProgramMemory::Flat { most } => (if value <= most { 0 } else { room + 1 }, room / 2),
        };
        let ran = (need <= room).then_some(held.min(room));
        SearchPoint { value, ran, refused: held > room || need > room }
    }
}

/// Searches to the end; the answer, and the values that were tried.
fn found(
    range: FitRange,
    room: u64,
    guess: Option<u64>,
    program: ProgramMemory,
) -> ((Option<u64>, Option<u64>), Vec<u64>) {
    let mut tries: Vec<SearchPoint> = Vec::new();
    loop {
        match (FitSearch { range, room, guess, tries: &tries }).next() {
            NextTry::Found { largest, smallest_failed } => {
                let values = tries.iter().map(|point| point.value).collect();
                return ((largest, smallest_failed), values);
            }
            NextTry::Value(value) => {
                assert!(range.has(value), "{value} is not in {range}");
                assert!(tries.iter().all(|point| point.value != value), "{value} twice");
                assert!(tries.len() < 64, "no end: {tries:?}");
                tries.push(program.run(value, room));
            }
        }
    }
}

/// The answer by trying every value.
fn truth(range: FitRange, room: u64, program: ProgramMemory) -> (Option<u64>, Option<u64>) {
    let values = || (range.low()..=range.high()).step_by(range.step() as usize);
    let failed = values().find(|value| program.run(*value, room).ran.is_none());
    let ran = values().take_while(|value| failed.is_none_or(|failed| *value < failed)).last();
    (ran, failed)
}

fn batches() -> FitRange {
    FitRange::new(1, 4096, 1).unwrap()
}

/// A room, and how it divides: the fixed part, and what each item takes if so many items fit.
fn rooms() -> impl Strategy<Value = (u64, u64, u64)> {
    let room = (512u64..200_000).prop_map(|mib| mib * MIB);
    let most = (0.0f64..13.0).prop_map(|power| 2f64.powf(power) as u64);
    (room, 0.0f64..0.9, most).prop_map(|(room, share, most)| {
        let fixed = (room as f64 * share) as u64;
        (room, fixed, ((room - fixed) / most.max(1)).max(1))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn linear_memory_is_found_exactly_in_at_most_eight_tries((room, fixed, each) in rooms()) {
        let program = ProgramMemory::Line { fixed, each, grain: 1 };
        let (answer, tried) = found(batches(), room, None, program);
        prop_assert_eq!(answer, truth(batches(), room, program));
        prop_assert!(tried.len() <= 8, "{:?}", tried);
    }

    #[test]
    fn rounding_by_less_than_an_item_changes_nothing(
        (room, fixed, each) in rooms(), share in 1u64..100,
    ) {
        let program = ProgramMemory::Line { fixed, each, grain: (each * share / 100).max(1) };
        let (answer, tried) = found(batches(), room, None, program);
        prop_assert_eq!(answer, truth(batches(), room, program));
        prop_assert!(tried.len() <= 8, "{:?}", tried);
    }

    #[test]
    fn a_guess_near_the_answer_saves_tries((room, fixed, each) in rooms(), off in 0.9f64..1.1) {
        let program = ProgramMemory::Line { fixed, each, grain: 1 };
        let answer = truth(batches(), room, program);
        let guess = ((answer.0.unwrap_or(1) as f64 * off) as u64).max(1);
        let (same, tried) = found(batches(), room, Some(guess), program);
        prop_assert_eq!(same, answer);
        prop_assert!(tried.len() <= 8, "{:?}", tried);
    }

    /// As PyTorch near the limit, with a guess from the formula and a hundred values.
    #[test]
    fn a_program_that_frees_its_cache_is_found_in_at_most_eight_tries(
        room in (2000u64..200_000).prop_map(|mib| mib * MIB),
        most in 1u64..120,
        kept in 0u64..200,
        off in 0.95f64..1.02,
    ) {
        let range = FitRange::new(1, 128, 1).unwrap();
        let (fixed, each) = (room / 5, room / 5 * 4 / most);
        let program = ProgramMemory::Cache { fixed, each, kept };
        let answer = truth(range, room, program);
        let guess = ((answer.0.unwrap_or(1) as f64 * off) as u64).max(1);
        let (same, tried) = found(range, room, Some(guess), program);
        prop_assert_eq!(same, answer);
        prop_assert!(tried.len() <= 8, "{:?}", tried);
    }

    /// Whatever the program does, the answer is exact, and bisection bounds the tries.
    #[test]
    fn any_growing_memory_is_found_exactly(
        (room, fixed, each) in rooms(),
        kind in 0usize..5,
        detail in 1u64..200,
        low in 1u64..300,
        count in 1u64..3000,
        step in 1u64..300,
        guess in proptest::option::of(1u64..5000),
    ) {
        let range = FitRange::new(low, low + count * step, step).unwrap();
        let program = match kind {
            0 => ProgramMemory::Line { fixed, each, grain: detail * MIB },
            1 => ProgramMemory::Steps { fixed, each, group: detail },
            2 => ProgramMemory::Bend { fixed, each, square: each / (detail * 10) },
            3 => ProgramMemory::Cache { fixed, each, kept: detail },
            _ => ProgramMemory::Flat { most: detail * 20 },
        };
        let (answer, tried) = found(range, room, guess, program);
        prop_assert_eq!(answer, truth(range, room, program));
        prop_assert!(tried.len() <= GUIDED_TRIES + 15, "{:?}", tried);
    }
}

#[test]
fn kept_results_are_not_tried_again() {
    let program = ProgramMemory::Line { fixed: 100 * MIB, each: 10 * MIB, grain: 1 };
    let (range, room) = (batches(), 2000 * MIB);
    let tries = [190, 191].map(|value| program.run(value, room));
    let next = FitSearch { range, room, guess: None, tries: &tries }.next();
    assert_eq!(next, NextTry::Found { largest: Some(190), smallest_failed: Some(191) });
}

#[test]
fn the_ends_of_the_range_are_answers() {
    let range = FitRange::new(8, 30, 8).unwrap();
    assert_eq!((range.high(), range.to_string().as_str()), (24, "8..24 in steps of 8"));
    let all = ProgramMemory::Line { fixed: 0, each: 1, grain: 1 };
    assert_eq!(found(range, MIB, None, all).0, (Some(24), None));
    let none = ProgramMemory::Line { fixed: MIB, each: 1, grain: 1 };
    assert_eq!(found(range, MIB, None, none).0, (None, Some(8)));
}

#[test]
fn what_is_no_range_is_refused() {
    for (low, high, step) in [(0, 4, 1), (5, 4, 1), (1, 4, 0)] {
        assert!(FitRange::new(low, high, step).is_err());
    }
}
