//! Everything that needs more than one module, on made-up measurements.

#[cfg(test)]
mod accuracy;
#[cfg(test)]
mod compare;
#[cfg(test)]
mod files;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod made_up;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod truth;
#[cfg(test)]
mod verdicts;
#[cfg(test)]
mod workload;
