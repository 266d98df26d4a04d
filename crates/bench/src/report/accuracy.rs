//! Accuracy in words: the figures that a report shows first, and its tables and curves.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::html::{figure, section};
use super::sheet::{DASH, ReportRow, row};
use super::svg::{self, Curve, Series};
use crate::record::{BenchRecord, CameraAccuracy, ClassAccuracy, ModelRecord, TaskAccuracy};

/// A table of more classes is folded.
const MOST_CLASSES: usize = 12;
/// Curves of more classes than this are not told apart.
const MOST_CURVES: usize = 5;

/// What was judged: the model's own task first, then the boxes of a model with masks or keypoints.
fn tasks(model: &ModelRecord) -> impl Iterator<Item = &TaskAccuracy> {
    model.accuracy.iter().chain(&model.box_accuracy)
}

/// mAP over IoU 0.50 to 0.95 of the model's own task; `None` where there are no labels.
pub(crate) fn map(model: &ModelRecord) -> Option<f64> {
    model.accuracy.as_ref()?.map
}

/// mAP at IoU 0.50; `None` where there are no labels.
pub(super) fn map50(model: &ModelRecord) -> Option<f64> {
    model.accuracy.as_ref()?.map50
}

pub(super) fn share(value: Option<f64>) -> String {
    value.map_or(DASH.to_string(), |value| format!("{value:.3}"))
}

/// What stands beside mAP: of what, and at an overlap of one half.
pub(super) fn note(model: &ModelRecord) -> Option<String> {
    let task = model.accuracy.as_ref()?;
    Some(format!("{}, IoU 0.50:0.95; {} at 0.50", task.task.name(), share(task.map50)))
}

/// The rows of all formats.
pub(super) fn rows(model: &ModelRecord) -> Vec<ReportRow> {
    let mut rows = Vec::new();
    for task in tasks(model) {
        let name = task.task.name();
        let whole = [task.map, task.map50, task.map75].map(share);
        let [map, half, three] = whole;
        rows.push(row(&format!("mAP of {name}"), format!("{map} (0.50: {half}, 0.75: {three})")));
        let [small, medium, large] = [task.map_small, task.map_medium, task.map_large].map(share);
        rows.push(row("By size", format!("small {small}, medium {medium}, large {large}")));
        let at = format!("at IoU {}, confidence {}", task.iou, task.conf);
        rows.push(row("Precision", format!("{} {at}", share(task.precision))));
        rows.push(row("Recall", format!("{} {at}", share(task.recall))));
        let truth = format!("{} objects in {} images", task.truths, task.images);
        rows.push(row("Labels", format!("{}: {truth}", task.labels)));
    }
    rows
}

/// The tables and curves of a page; nothing where there are none.
pub(super) fn html(model: &ModelRecord) -> Markup {
    html! { @for task in tasks(model) { (task_html(task)) } }
}

fn task_html(task: &TaskAccuracy) -> Markup {
    let curves = curves(task);
    let legend: Vec<Series<'_>> =
        curves.iter().map(|curve| Series { name: &curve.name, points: &[] }).collect();
    let plot = svg::curves("Precision over recall", ("recall", "precision"), &curves);
    let confusion = &task.confusion;
    let matrix = svg::matrix("Confusion", &confusion.names, &confusion.counts);
    let rules = format!("Confusion at IoU {} and score {}", confusion.iou, confusion.score);
    html! {
        h3 { "Accuracy of " (task.task.name()) }
        div.plots {
            (figure("Precision over recall at IoU 0.50", plot.as_ref(), &legend))
            (figure(&rules, matrix.as_ref(), &[]))
        }
        (classes(task))
        p.small { (one_line(&task.how)) }
    }
}

/// The mean of all classes, and those with the most objects.
fn curves(task: &TaskAccuracy) -> Vec<Curve> {
    let mut often: Vec<&ClassAccuracy> =
        task.classes.iter().filter(|class| class.truths > 0).collect();
    often.sort_by_key(|class| std::cmp::Reverse(class.truths));
    let wanted: Vec<i64> = often.iter().take(MOST_CURVES).map(|class| class.class).collect();
    let name = |class: Option<i64>| match class {
        None => "all classes".to_string(),
        Some(class) => {
            let known = task.classes.iter().find(|one| one.class == class);
            known.map_or_else(|| class.to_string(), |one| one.name.clone())
        }
    };
    let shown = task
        .precision_recall
        .iter()
        .filter(|curve| curve.class.is_none_or(|c| wanted.contains(&c)));
    shown
        .map(|curve| Curve {
            name: name(curve.class),
            points: curve.recall.iter().copied().zip(curve.precision.iter().copied()).collect(),
        })
        .collect()
}

fn classes(task: &TaskAccuracy) -> Markup {
    let body = html! {
        div.wide {
            table.numbers {
                thead {
                    tr { @for name in ["class", "objects", "mAP", "mAP at 0.50", "precision", "recall"] { th { (name) } } }
                }
                tbody {
                    @for class in &task.classes {
                        tr {
                            td { (one_line(&class.name)) }
                            td { (class.truths) }
                            @for value in [class.map, class.map50, class.precision, class.recall] {
                                td { (share(value)) }
                            }
                        }
                    }
                }
            }
        }
    };
    match task.classes.len() {
        0 => html! {},
        n if n > MOST_CLASSES => html! { details { summary { (n) " classes" } (body) } },
        _ => body,
    }
}

/// What two cameras find together; nothing where they were not judged together.
pub(super) fn fusion_rows(record: &BenchRecord) -> Vec<(String, CameraAccuracy)> {
    let Some(fusion) = &record.fusion else { return Vec::new() };
    let name = |slot: usize| record.models.get(slot).map_or(slot.to_string(), ModelRecord::label);
    let cameras = fusion.cameras.iter().enumerate().map(|(slot, one)| (name(slot), one.clone()));
    cameras.chain([("both together".to_string(), fusion.fused.clone())]).collect()
}

/// What the second camera is worth, on a page.
pub(super) fn fusion_html(record: &BenchRecord) -> Markup {
    let Some(fusion) = &record.fusion else { return html! {} };
    let body = html! {
        div.wide {
            table.numbers {
                thead {
                    tr { @for name in ["", "mAP", "mAP at 0.50", "precision", "recall"] { th { (name) } } }
                }
                tbody {
                    @for (name, one) in fusion_rows(record) {
                        tr {
                            td { (one_line(&name)) }
                            @for value in [one.map, one.map50, one.precision, one.recall] {
                                td { (share(value)) }
                            }
                        }
                    }
                }
            }
        }
        p.small {
            (fusion.truths) " objects in " (fusion.images) " pairs of images. " (one_line(&fusion.rule))
        }
    };
    section("Two cameras", &body)
}
