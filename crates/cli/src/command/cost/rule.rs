//! What work costs: pure arithmetic.
//!
//! A GPU is paid for once and used for years, so what an item costs is the price of a year
//! over what a year makes, and not the whole price over one day's output.

use plimsoll::{Bytes, SAFETY_MARGIN, will_oom};
use serde::Serialize;

const DAYS: f64 = 365.0;
const HOURS: f64 = 24.0;

/// A GPU at work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CostMachine {
    /// Items a second while it works.
    pub(super) throughput_per_second: f64,
    pub(super) price: f64,
    pub(super) lifetime_years: f64,
    /// While it works; null where electricity is not counted.
    pub(super) power_watts: Option<f64>,
    pub(super) electricity_per_kwh: Option<f64>,
    /// The share of the time that it works.
    pub(super) utilisation: f64,
}

/// What it costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CostFigures {
    pub(super) items_per_day: f64,
    pub(super) per_million_items: f64,
    pub(super) per_day: f64,
    pub(super) per_year: f64,
    pub(super) hardware_per_year: f64,
    /// Null where power or the price of electricity is not given.
    pub(super) electricity_per_year: Option<f64>,
}

impl CostMachine {
    pub(super) fn cost(&self) -> CostFigures {
        let items_per_day = self.throughput_per_second * 3600.0 * HOURS * self.utilisation;
        let hardware_per_year = self.price / self.lifetime_years;
        let electricity_per_year = self.electricity_per_year();
        let per_year = hardware_per_year + electricity_per_year.unwrap_or(0.0);
        CostFigures {
            items_per_day,
            per_million_items: per_year / (items_per_day * DAYS) * 1e6,
            per_day: per_year / DAYS,
            per_year,
            hardware_per_year,
            electricity_per_year,
        }
    }

    fn electricity_per_year(&self) -> Option<f64> {
        let kilowatts = self.power_watts? / 1000.0;
        Some(kilowatts * HOURS * DAYS * self.utilisation * self.electricity_per_kwh?)
    }

    /// Electricity of one item.
    fn per_item(&self) -> f64 {
        let kilowatt_seconds =
            self.power_watts.unwrap_or(0.0) / 1000.0 / self.throughput_per_second;
        kilowatt_seconds / 3600.0 * self.electricity_per_kwh.unwrap_or(0.0)
    }
}

/// Two GPUs, bought for the same work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct BreakEven {
    /// Items after which both have cost the same; null where one is cheaper from the first.
    pub(super) items: Option<f64>,
    /// The same in days of the first one's work.
    pub(super) days: Option<f64>,
    /// Which costs less for an item over its life: `first`, `second` or `equal`.
    pub(super) cheaper: &'static str,
    /// Items a second that make the second one cost as much for an item as the first.
    pub(super) throughput_of_the_second: f64,
}

impl BreakEven {
    pub(super) fn between(first: &CostMachine, second: &CostMachine) -> BreakEven {
        let (one, other) = (first.cost(), second.cost());
        let saved = second.per_item() - first.per_item();
        let items = (first.price - second.price) / saved;
        let items = Some(items).filter(|items| items.is_finite() && *items > 0.0);
        let cheaper = match one.per_million_items.total_cmp(&other.per_million_items) {
            std::cmp::Ordering::Less => "first",
            std::cmp::Ordering::Greater => "second",
            std::cmp::Ordering::Equal => "equal",
        };
        let share = other.per_million_items / one.per_million_items;
        BreakEven {
            items,
            days: items.map(|items| items / one.items_per_day),
            cheaper,
            throughput_of_the_second: second.throughput_per_second * share,
        }
    }
}

/// Memory that is sold on one board or card, in GiB.
const SOLD: [u64; 14] = [8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288];

/// The smallest memory into whose margin this much fits.
pub(super) fn smallest(required: Bytes) -> Bytes {
    // The cast stops at the largest number. Rounding may give a byte too many.
    let ceiling = (required.get() as f64 / SAFETY_MARGIN).ceil() as u64;
    match ceiling.checked_sub(1).map(Bytes) {
        Some(less) if !will_oom(required, less) => less,
        _ => Bytes(ceiling),
    }
}

/// The smallest that is sold and large enough, in GiB; none where none is.
pub(super) fn sold(required: Bytes) -> Option<u64> {
    let smallest = smallest(required);
    SOLD.into_iter().find(|size| Bytes::gib(*size) >= smallest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(price: f64, throughput_per_second: f64, power: Option<f64>) -> CostMachine {
        CostMachine {
            throughput_per_second,
            price,
            lifetime_years: 3.0,
            power_watts: power,
            electricity_per_kwh: power.map(|_| 0.2),
            utilisation: 0.5,
        }
    }

    #[test]
    fn a_price_is_spread_over_a_life() {
        let cost = machine(15_000.0, 1000.0, None).cost();
        assert_eq!(cost.items_per_day, 43_200_000.0);
        assert_eq!((cost.per_year, cost.hardware_per_year), (5000.0, 5000.0));
        assert_eq!(cost.electricity_per_year, None);
        assert!((cost.per_million_items - 5000.0 / (43.2 * 365.0)).abs() < 1e-9);
        let cost = machine(15_000.0, 1000.0, Some(1000.0)).cost();
        assert_eq!(cost.electricity_per_year, Some(876.0));
        assert_eq!(cost.per_year, 5876.0);
    }

    #[test]
    fn the_dear_one_pays_where_it_saves_power() {
        let (expensive, cheap) =
            (machine(20_000.0, 2000.0, Some(500.0)), machine(10_000.0, 1000.0, Some(500.0)));
        let even = BreakEven::between(&expensive, &cheap);
        // 500 W at 0.2 a kWh: 2.78e-8 an item, and half of that.
        assert!((even.items.unwrap() - 10_000.0 / 1.388_888_9e-8).abs() / 7.2e11 < 1e-6);
        assert_eq!(even.cheaper, "first");
        let back = BreakEven::between(&cheap, &expensive);
        assert_eq!(back.items.map(f64::round), even.items.map(f64::round));
        assert_eq!(back.cheaper, "second");
        let same = BreakEven::between(&cheap, &cheap);
        assert_eq!((same.items, same.cheaper), (None, "equal"));
        assert_eq!(same.throughput_of_the_second, 1000.0);
    }

    #[test]
    fn memory_has_the_margin_of_every_plan() {
        assert_eq!(smallest(Bytes(700)), Bytes(1000));
        assert_eq!(sold(Bytes::gib(7)), Some(12));
        assert_eq!(sold(Bytes::gib(8)), Some(12));
        assert_eq!(sold(Bytes::gib(1)), Some(8));
        assert_eq!(sold(Bytes::gib(300)), None);
        assert_eq!(smallest(Bytes::MAX), Bytes::MAX);
    }
}
