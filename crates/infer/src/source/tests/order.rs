//! Working ahead and pairing, on sources that are lists.

use std::collections::VecDeque;

use crate::error::InferError;
use crate::source::pair::Pairs;
use crate::source::*;

/// Frames at given times, or errors.
struct List(SourceInfo, VecDeque<InferResult<Frame>>);

impl Source for List {
    fn info(&self) -> &SourceInfo {
        &self.0
    }
    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        self.1.pop_front()
    }
}

fn frame(milliseconds: u64) -> Frame {
    let timestamp = Duration::from_millis(milliseconds);
    Frame::new(Pixels::Grey8(vec![0]), (1, 1), timestamp, milliseconds.to_string())
}

fn list(times: &[u64]) -> Box<List> {
    Box::new(List(SourceInfo::default(), times.iter().map(|&t| Ok(frame(t))).collect()))
}

fn bad() -> InferResult<Frame> {
    Err(InferError::Frame { frame: "x".into(), why: "y".into() })
}

#[test]
fn a_silent_stream_has_vanished() {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    struct Silent(SourceInfo, Receiver<()>, SyncSender<()>);
    impl Source for Silent {
        fn info(&self) -> &SourceInfo {
            &self.0
        }
        fn next_frame(&mut self) -> Option<InferResult<Frame>> {
            self.1.recv().ok()?;
            None
        }
        fn stopper(&self) -> Option<Stopper> {
            let wake = self.2.clone();
            Some(std::sync::Arc::new(move || wake.send(()).unwrap_or_default()))
        }
    }
    let (wake, wait) = sync_channel(1);
    let source = Box::new(Silent(SourceInfo::default(), wait, wake));
    let timeout = Some(Duration::from_millis(50));
    let mut source = ahead::Ahead::new(source, &SourceOptions::default(), timeout).unwrap();
    let said = source.next_frame().unwrap().unwrap_err().to_string();
    assert!(said.contains("vanished"), "{said}");
    assert!(source.next_frame().is_none());
}

#[test]
fn working_ahead_changes_nothing_but_the_waiting() {
    let mixed = VecDeque::from([Ok(frame(0)), bad(), Ok(frame(1))]);
    let source = Box::new(List(SourceInfo::default(), mixed));
    let ticks = std::sync::atomic::AtomicU64::new(0);
    let tick =
        move || Duration::from_millis(ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let clock: Clock = Arc::new(tick);
    let options = SourceOptions { clock: Some(clock), ..SourceOptions::default() };
    let mut ahead = ahead::Ahead::new(source, &options, None).unwrap();
    assert_eq!(ahead.next_frame().unwrap().unwrap().name, "0");
    assert_eq!(ahead.decode_time(), Some(Duration::from_millis(1)));
    assert!(matches!(ahead.next_frame(), Some(Err(InferError::Frame { .. }))));
    assert_eq!(ahead.next_frame().unwrap().unwrap().name, "1");
    assert!(ahead.next_frame().is_none() && ahead.next_frame().is_none());
}

#[test]
fn frames_are_staged_as_they_are_decoded_and_copies_are_not() {
    let stager: Stager = Arc::new(|frame: &Frame| Staged::new(frame.name.clone()));
    let options = SourceOptions { stager: Some(stager), ..SourceOptions::default() };
    let mut ahead = ahead::Ahead::new(list(&[3, 5]), &options, None).unwrap();
    for name in ["3", "5"] {
        let frame = ahead.next_frame().unwrap().unwrap();
        assert_eq!(frame.staged.get::<String>().unwrap(), name);
        assert!(frame.staged.get::<u64>().is_none());
        assert!(frame.clone().staged.get::<String>().is_none());
    }
}

#[test]
fn a_source_that_panics_or_fails_ends_with_a_reason() {
    struct Panics(SourceInfo);
    impl Source for Panics {
        fn info(&self) -> &SourceInfo {
            &self.0
        }
        fn next_frame(&mut self) -> Option<InferResult<Frame>> {
            panic!("a decoder's fault")
        }
    }
    let source = Box::new(Panics(SourceInfo::default()));
    let mut ahead = ahead::Ahead::new(source, &SourceOptions::default(), None).unwrap();
    assert!(matches!(ahead.next_frame(), Some(Err(InferError::Source { .. }))));
    assert!(ahead.next_frame().is_none());
}

fn pairs(first: &[u64], second: &[u64], tolerance: u64) -> (Vec<(u64, u64)>, [u64; 2]) {
    let tolerance = Duration::from_millis(tolerance);
    let mut pairs = Pairs::new(list(first), list(second), tolerance);
    let mut made = Vec::new();
    while let Some(pair) = pairs.next_pair() {
        let pair = pair.unwrap();
        assert!(pair.gap() <= tolerance);
        let time = |f: &Frame| f.timestamp.as_millis() as u64;
        made.push((time(&pair.first), time(&pair.second)));
    }
    (made, pairs.unpaired())
}

#[test]
fn frames_pair_with_the_nearest_of_their_time() {
    assert_eq!(pairs(&[0, 33, 66], &[0, 33, 66], 5), (vec![(0, 0), (33, 33), (66, 66)], [0, 0]));
    assert_eq!(pairs(&[0, 33, 66], &[30, 63], 40), (vec![(33, 30), (66, 63)], [1, 0]));
    assert_eq!(pairs(&[0, 10, 20, 30], &[1, 29], 3), (vec![(0, 1), (30, 29)], [2, 0]));
    assert_eq!(pairs(&[0, 100], &[50, 150], 10), (vec![], [2, 2]));
    assert_eq!(pairs(&[], &[1, 2], 10), (vec![], [0, 1]));
}

#[test]
fn a_bad_frame_of_either_side_does_not_end_the_pairs() {
    let first = VecDeque::from([bad(), Ok(frame(0)), Ok(frame(10))]);
    let first = Box::new(List(SourceInfo::default(), first));
    let mut pairs = Pairs::new(first, list(&[0, 10]), Duration::ZERO);
    assert!(matches!(pairs.next_pair(), Some(Err(InferError::Frame { .. }))));
    assert!(pairs.next_pair().unwrap().is_ok() && pairs.next_pair().unwrap().is_ok());
    assert!(pairs.next_pair().is_none());
}
