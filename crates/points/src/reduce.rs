//! What several values come to: one rule for the host's loops, which the kernels follow too.

/// Summed in double precision in the order given, and rounded to single once. What is no number
/// is the same NaN whoever adds, as processors differ in which they make.
pub(crate) fn sum(values: &mut dyn Iterator<Item = f32>) -> f32 {
    quiet(values.fold(0.0f64, |sum, value| sum + f64::from(value)) as f32)
}

/// The sum in double precision, divided, and rounded to single once.
pub(crate) fn mean(values: &mut dyn Iterator<Item = f32>) -> f32 {
    let (mut sum, mut count) = (0.0f64, 0u64);
    for value in values {
        sum += f64::from(value);
        count += 1;
    }
    quiet((sum / count as f64) as f32)
}

/// By IEEE's total order, where +0 is above −0, and any NaN above everything.
pub(crate) fn largest(values: &mut dyn Iterator<Item = f32>) -> f32 {
    values.map(quiet).max_by(f32::total_cmp).unwrap_or(0.0)
}

/// Every NaN the same.
pub(crate) fn quiet(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value }
}
