//! The command line: `plimsoll <verb>`.
//!
//! From arguments to exit code in one function: parse, run the verb, print, exit. A verb
//! decides nothing about colours, JSON or exit codes; it returns an answer
//! ([`output::Answer`]) and whether it is yes or no ([`outcome::Outcome`]).

mod args;
mod chart;
mod command;
mod driver_timeout;
mod duration;
mod html;
mod limit;
mod logging;
mod model_flags;
mod outcome;
mod output;
mod output_conflicts;
mod page;
mod reason;
mod recording;
mod shell;
mod stop;
mod train_flags;
mod tui;
mod whole_file;

use std::ffi::OsString;
use std::process::ExitCode;

use output::Output;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let json = args::wants_json(&argv);
    output::report_panics(json);
    stop::end_with_starter();
    stop::survive_large_files();
    let args = match args::parse(argv) {
        Ok(args) => args,
        Err(error) => return output::usage(&error, json),
    };
    logging::start(&args.global);
    let mut out = Output::new(&args.global);
    let result = args.verb.run(&mut out);
    let result = out.finish().and(result);
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) => output::failure(&error, json),
    }
}
