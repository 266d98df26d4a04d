//! Everything that needs more than one room, on made-up measurements.

mod checker;
mod compare;
mod files;
mod formats;
mod made_up;
mod schema;
mod verdicts;
