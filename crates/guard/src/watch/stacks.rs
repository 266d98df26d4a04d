//! Reads the call stacks that the guarded processes have written.

use std::io::BufRead;

use crate::log::MOST_STACK_BYTES;

/// Reads the call stacks with these numbers. Where a number occurs twice, as with a process that
/// became another program by exec, the last one counts.
pub fn parse_stacks(from: impl BufRead, wanted: &[u16]) -> Vec<(u16, Vec<String>)> {
    let mut stacks: Vec<(u16, Vec<String>)> = Vec::new();
    let mut reading = false;
    let lines = from.take(MOST_STACK_BYTES).split(b'\n').map_while(Result::ok);
    for line in lines.map(|line| String::from_utf8_lossy(&line).into_owned()) {
        if let Some(number) = line.strip_prefix("# ").and_then(|number| number.parse().ok()) {
            reading = wanted.contains(&number);
            if reading {
                stacks.retain(|(other, _)| *other != number);
                stacks.push((number, Vec::new()));
            }
        // The guard's own frames say nothing about the program.
        } else if reading && !line.contains("libplimsoll_guard.so") {
            stacks.last_mut().into_iter().for_each(|(_, to)| to.push(line.clone()));
        }
    }
    stacks
}
