//! What was live when a device's charge was highest, by the call stack that allocated it.
//!
//! The live memory of each place is kept all the time; what changed since the last peak is copied
//! at the next one. So a course of many small peaks costs as much as its changes, and memory grows
//! with the places and not with the events.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use super::super::gather::ProcessKey;

/// How many places are listed; the rest is summed.
const LISTED: usize = 256;

/// What was live at the peak of a device.
#[derive(Debug, Clone, Default)]
pub struct PeakMemory {
    /// When the charge was highest, in seconds since the start.
    pub at: f64,
    /// The charge, as the events tell it.
    pub bytes: u64,
    /// Who held it, those with the most first.
    pub places: Vec<PeakPlace>,
    /// What places hold that are not listed.
    pub elsewhere: u64,
}

/// Memory that was live at a peak, from one place in a program.
#[derive(Debug, Clone)]
pub struct PeakPlace {
    /// The process.
    pub who: ProcessKey,
    /// How much.
    pub bytes: u64,
    /// In how many blocks; 0 where the driver took it for itself.
    pub blocks: u64,
    /// Whether the driver took it for itself: contexts, modules, local memory.
    pub is_drivers: bool,
    /// Where it was allocated, if call stacks were kept.
    pub stack: Vec<String>,
    pub(super) stack_number: u16,
}

/// Who took memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PlaceKey {
    /// The program, at the call stack of this number; 0 where none was kept.
    Stack(u16),
    /// The driver itself.
    Driver,
}

/// Bytes and blocks of places, by the list of their process.
type LivePlaces = HashMap<usize, HashMap<PlaceKey, (u64, u64)>>;

/// Follows a device.
#[derive(Debug, Default)]
pub(super) struct PeakBuilder {
    now: LivePlaces,
    at_peak: LivePlaces,
    /// What changed since the last peak, in an order that does not depend on chance.
    changed: BTreeSet<(usize, PlaceKey)>,
    peak: u64,
    at: f64,
}

impl PeakBuilder {
    /// A place takes memory; `blocks` is 1 for a block.
    pub(super) fn take(&mut self, list: usize, place: PlaceKey, bytes: u64, blocks: u64) {
        let held = self.now.entry(list).or_default().entry(place).or_default();
        *held = (held.0.saturating_add(bytes), held.1.saturating_add(blocks));
        self.changed.insert((list, place));
    }

    /// A place gives memory back.
    pub(super) fn give_back(&mut self, list: usize, place: PlaceKey, bytes: u64, blocks: u64) {
        let held = self.now.entry(list).or_default().entry(place).or_default();
        *held = (held.0.saturating_sub(bytes), held.1.saturating_sub(blocks));
        self.changed.insert((list, place));
    }

    /// A process has ended, and holds nothing any more.
    pub(super) fn end(&mut self, list: usize) {
        let places = self.now.remove(&list).unwrap_or_default();
        self.changed.extend(places.into_keys().map(|place| (list, place)));
    }

    /// The device's charge after a change.
    pub(super) fn charged(&mut self, charge: u64, at: f64) {
        if charge <= self.peak {
            return;
        }
        (self.peak, self.at) = (charge, at);
        for (list, place) in std::mem::take(&mut self.changed) {
            let held = self.now.get(&list).and_then(|places| places.get(&place));
            let places = self.at_peak.entry(list).or_default();
            match held.filter(|held| held.0 > 0) {
                Some(held) => drop(places.insert(place, *held)),
                None => drop(places.remove(&place)),
            }
        }
    }

    /// Whether anything was charged.
    pub(super) fn is_known(&self) -> bool {
        self.peak > 0
    }

    /// `who` is the process of a list.
    pub(super) fn finish(self, who: impl Fn(usize) -> ProcessKey) -> PeakMemory {
        let mut places: Vec<(usize, PlaceKey, (u64, u64))> = Vec::new();
        for (list, of_list) in self.at_peak {
            places.extend(of_list.into_iter().map(|(place, held)| (list, place, held)));
        }
        places.sort_by_key(|(list, place, held)| (Reverse(held.0), *list, *place));
        let elsewhere = places.iter().skip(LISTED).map(|(.., held)| held.0).sum();
        let place = |(list, place, (bytes, blocks)): (usize, PlaceKey, (u64, u64))| {
            let (is_drivers, stack_number) = match place {
                PlaceKey::Driver => (true, 0),
                PlaceKey::Stack(number) => (false, number),
            };
            let who = who(list);
            PeakPlace { who, bytes, blocks, is_drivers, stack: Vec::new(), stack_number }
        };
        let places = places.into_iter().take(LISTED).map(place).collect();
        PeakMemory { at: self.at, bytes: self.peak, places, elsewhere }
    }
}
