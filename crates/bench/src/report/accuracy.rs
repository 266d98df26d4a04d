//! Accuracy in words: the figures that a report shows first, and its tables and curves.

use crate::record::ModelRecord;

/// mAP over IoU 0.50 to 0.95; `None` where there are no labels.
pub(crate) fn map(model: &ModelRecord) -> Option<f64> {
    model.accuracy.as_ref()?.map
}

/// mAP at IoU 0.50; `None` where there are no labels.
pub(super) fn map50(model: &ModelRecord) -> Option<f64> {
    model.accuracy.as_ref()?.map50
}

/// What stands beside it.
pub(super) fn note(model: &ModelRecord) -> Option<String> {
    let right = model.accuracy.as_ref()?;
    let share = |value: Option<f64>| value.map_or("–".to_string(), |v| format!("{v:.3}"));
    Some(format!("precision {}, recall {}", share(right.precision), share(right.recall)))
}

/// The tables and curves of a page; nothing where there are none.
pub(super) fn html(_model: &ModelRecord) -> maud::Markup {
    maud::Markup::default()
}
