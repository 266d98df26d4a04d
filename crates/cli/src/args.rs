//! The command line: one clap tree, from which help, man pages and completions come.
//!
//! Each verb's flags live beside the verb (`command/<verb>.rs`); here is only what
//! every verb shares.
//!
//! Every flag also works in snake_case, because configuration files and Python users
//! write it so. That is done once, on the finished tree: each long flag gets its
//! underscored spelling as a hidden alias. Rewriting the arguments before clap sees
//! them would also do, but would have to guess which of them are flags and which are
//! values, or belong to a program that is started.

use std::ffi::OsString;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser};

use plimsoll::LIMIT_PROFILES;
use plimsoll::text::one_line;

use crate::command::Verb;

const ABOUT: &str = "GPU memory: what fits, a hard limit, and honest measurement";

const EXAMPLES: &str = "\
Examples:
  plimsoll run --limit 8GiB -- python3 train.py   a hard limit of GPU memory
  plimsoll estimate model.gguf --limit 8GiB       whether a model fits
  plimsoll report                 who holds the memory now, and how to end it
  plimsoll monitor                memory while it runs, and when it runs out
  plimsoll doctor                 what this machine can do, and what to do next
  plimsoll bench                  two detectors of its own on drawn scenes, measured
  plimsoll compare A B            whether the second run is slower
  plimsoll fit model.gguf --limit 8GiB --vary context   the largest that fits
  plimsoll generate --tensorrt    build what .engine files need, where TensorRT is installed
  plimsoll help doctor            all about one verb; --json is the same for programs

Exit codes:
  0 fine, 1 the answer is no, 2 bad usage or input, 3 something failed";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The flags of every verb.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Global {
    /// Print the answer as JSON, and errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print the bare answer: no explanations, no advice, no warnings, no progress
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log more to stderr, and to the log of a run: -v what is done, -vv how, -vvv everything (or
    /// set RUST_LOG)
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Reads the command line. An `Err` may also be a request for help or the version. Where it
/// names words that a terminal would obey, such as a file's name in the place of a flag, it is
/// the error that the same words without that have.
pub(crate) fn parse(argv: Vec<OsString>) -> Result<Args, clap::Error> {
    let shown = |word: &OsString| one_line(&word.to_string_lossy()).into_owned().into();
    let tame: Vec<OsString> = argv.iter().map(shown).collect();
    match parse_as_given(argv.clone()) {
        // `--limit -8GiB`: what is wrong is the value, and not that there is no flag -8.
        Err(error) if error.kind() == clap::error::ErrorKind::UnknownArgument => {
            parse_as_given(with_negatives(argv))
        }
        parsed => parsed,
    }
    .map_err(|error| parse_as_given(with_negatives(tame)).err().unwrap_or(error))
}

/// The words, with negative numbers joined to the flags before them.
fn with_negatives(argv: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    for word in argv {
        let negative = word.to_str().and_then(|word| word.strip_prefix('-'));
        let negative = negative.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let flag = |last: &&mut OsString| {
            last.to_str()
                .is_some_and(|last| last.len() > 2 && last.starts_with("--") && !last.contains('='))
        };
        match words.last_mut().filter(flag).filter(|_| negative) {
            Some(flag) => {
                flag.push("=");
                flag.push(word);
            }
            None => words.push(word),
        }
    }
    words
}

fn parse_as_given(argv: Vec<OsString>) -> Result<Args, clap::Error> {
    let mut command = with_examples_first(command());
    let matches = command.try_get_matches_from_mut(argv)?;
    Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Whether errors are to be JSON: asked before parsing, as parsing may be what fails.
pub(crate) fn wants_json(argv: &[OsString]) -> bool {
    argv.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// The tree, with both spellings of every flag.
pub(crate) fn command() -> Command {
    with_snake_case(Args::command())
}

/// The tree as shells complete it: without the verbs and flags that are hidden from help, which
/// scripts would offer all the same.
pub(crate) fn shown() -> Command {
    without_hidden(&with_values(command())).version(env!("CARGO_PKG_VERSION"))
}

fn without_hidden(command: &Command) -> Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(command.get_name().to_string())
        .about(about)
        .args(flags.cloned())
        .subcommands(verbs.map(without_hidden))
}

/// Values of flags that shells complete. The flags' own parsers take more, such as `cuda:7`, so
/// these are not the only ones; a test sees that they are taken.
const COMPLETED: [(&str, &str, &[&str]); 7] = [
    ("bench", "mode", &["rgb", "thermal", "dual"]),
    ("bench", "engine", &["auto", "rten", "ort", "tensorrt", "echo"]),
    ("bench", "device", &["auto", "cpu", "cuda:0", "cuda:1"]),
    ("voxelize", "mode", &["occupancy", "count", "mean", "max"]),
    ("voxelize", "dtype", &["f32", "u8", "bits", "u32", "sparse"]),
    ("voxelize", "backend", &["auto", "host", "cuda", "opencl"]),
    ("estimate", "engine", &["ort", "rten", "tensorrt", "llama.cpp", "pytorch"]),
];

/// Gives flags the values that shells complete.
fn with_values(command: Command) -> Command {
    let profiles: Vec<&str> = LIMIT_PROFILES.iter().map(|profile| profile.name).collect();
    let of_profile = ["bench", "run"].map(|verb| (verb, "profile", profiles.as_slice()));
    let all = COMPLETED.into_iter().chain(of_profile);
    all.fold(command, |command, (verb, flag, values)| {
        command.mut_subcommand(verb, |verb| {
            let known = verb.get_arguments().any(|arg| arg.get_id() == flag);
            let values = PossibleValuesParser::new(values.iter().map(|value| value.to_string()));
            if known { verb.mut_arg(flag, |arg| arg.value_parser(values)) } else { verb }
        })
    })
}

/// How many examples a verb's help begins with.
const FIRST_EXAMPLES: usize = 3;

/// Has the help of every verb begin with its commonest uses; the rest stays at its end. Man pages
/// have all of them in one place.
fn with_examples_first(command: Command) -> Command {
    let command = command.mut_subcommands(with_examples_first);
    let after = command.get_after_help().map(ToString::to_string);
    let Some((first, rest)) = after.as_deref().and_then(split_examples) else { return command };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // What `--help` says beyond the first line comes after the flags.
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let more = long.strip_prefix(&about).unwrap_or(&long).trim();
    let more = [more, &rest].into_iter().filter(|part| !part.is_empty());
    let more = more.collect::<Vec<_>>().join("\n\n");
    // A template would read braces as names.
    if first.contains(['{', '}']) || about.contains(['{', '}']) {
        return command;
    }
    let template = format!(
        "{about}\n\nExamples:\n{first}\n\n{{usage-heading}} {{usage}}\n\n{{all-args}}{{after-help}}"
    );
    command.help_template(template).after_help(rest).after_long_help(more)
}

/// The first examples of a text that begins with `Examples:`, and the text without them.
fn split_examples(after: &str) -> Option<(String, String)> {
    let lines: Vec<&str> = after.strip_prefix("Examples:\n")?.lines().collect();
    let end = lines.iter().position(|line| line.is_empty()).unwrap_or(lines.len());
    // An example begins two columns in; what stands further in belongs to the one above it.
    let starts = lines[..end].iter().enumerate().filter(|(_, line)| !line.starts_with("   "));
    let cut = starts.map(|(at, _)| at).nth(FIRST_EXAMPLES).unwrap_or(end);
    let (first, more) = (lines[..cut].join("\n"), lines[cut..end].join("\n"));
    let more = if more.is_empty() { String::new() } else { format!("More examples:\n{more}") };
    let tail = lines[end..].join("\n");
    Some((first, format!("{more}\n{tail}").trim_matches('\n').to_string()))
}

fn with_snake_case(command: Command) -> Command {
    command
        // So that -3 reaches the parser of the flag before it, which names the flag.
        .allow_negative_numbers(true)
        .mut_args(|arg| {
            let snakes: Vec<String> = arg
                .get_long()
                .into_iter()
                .chain(arg.get_all_aliases().unwrap_or_default())
                .filter(|long| long.contains('-'))
                .map(|long| long.replace('-', "_"))
                .collect();
            arg.aliases(snakes)
        })
        .mut_subcommands(with_snake_case)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn the_tree_is_sound() {
        command().debug_assert();
    }

    fn chunk() -> Command {
        let item = Arg::new("item").long("item-bytes").alias("bytes-per-item");
        let rest = Arg::new("rest").num_args(0..).last(true);
        with_snake_case(
            Command::new("plimsoll").subcommand(Command::new("chunk").args([item, rest])),
        )
    }

    fn item_and_rest(words: &[&str]) -> Result<(String, Vec<String>), clap::Error> {
        let matches = chunk().try_get_matches_from([&["plimsoll", "chunk"], words].concat())?;
        let chunk = matches.subcommand_matches("chunk");
        let item = chunk.and_then(|m| m.get_one::<String>("item")).cloned().unwrap_or_default();
        let rest = chunk.and_then(|m| m.get_many::<String>("rest")).into_iter().flatten();
        Ok((item, rest.cloned().collect()))
    }

    #[test]
    fn flags_and_their_aliases_work_in_snake_case() {
        for words in [
            &["--item-bytes", "a_b"][..],
            &["--item_bytes", "a_b"],
            &["--item_bytes=a_b"],
            &["--bytes-per-item=a_b"],
            &["--bytes_per_item=a_b"],
        ] {
            assert_eq!(item_and_rest(words).unwrap().0, "a_b", "{words:?}");
        }
        assert!(item_and_rest(&["--no_such_flag"]).is_err());
    }

    #[test]
    fn what_stands_after_two_dashes_is_left_alone() {
        let (item, rest) = item_and_rest(&["--item_bytes=1", "--", "--item_bytes=2"]).unwrap();
        assert_eq!((item.as_str(), rest), ("1", vec!["--item_bytes=2".to_string()]));
    }

    #[test]
    fn the_other_spelling_stays_out_of_the_help() {
        let mut command = chunk();
        let chunk = command.find_subcommand_mut("chunk").unwrap();
        assert!(!chunk.render_long_help().to_string().contains("item_bytes"));
    }

    #[test]
    fn values_that_shells_complete_are_taken() {
        use clap::error::ErrorKind::{InvalidValue, ValueValidation};
        let refused = |verb: &str, flag: &str, value: &str| {
            let words = ["plimsoll", verb, &format!("--{flag}={value}")];
            let error = command().try_get_matches_from(words).err();
            error.is_some_and(|error| matches!(error.kind(), InvalidValue | ValueValidation))
        };
        for (verb, flag, values) in COMPLETED {
            for value in values {
                assert!(!refused(verb, flag, value), "{verb} --{flag} {value}");
            }
            assert!(refused(verb, flag, "surely-none"), "{verb} --{flag}");
        }
        let tree = shown();
        for (verb, flag) in
            [("bench", "mode"), ("bench", "engine"), ("bench", "profile"), ("run", "profile")]
        {
            let verb = tree.find_subcommand(verb).unwrap();
            let arg = verb.get_arguments().find(|arg| arg.get_id() == flag).unwrap();
            assert!(arg.get_possible_values().len() > 2, "{flag}");
        }
        tree.debug_assert();
    }

    #[test]
    fn the_first_three_examples_come_first() {
        let after = "Examples:\n  a 1\n  b 2 \\\n      b 3\n  c\n  d\n\nExit codes:\n  0";
        let (first, rest) = split_examples(after).unwrap();
        assert_eq!(first, "  a 1\n  b 2 \\\n      b 3\n  c");
        assert_eq!(rest, "More examples:\n  d\n\nExit codes:\n  0");
        assert_eq!(split_examples("Examples:\n  a"), Some(("  a".into(), String::new())));
        assert_eq!(split_examples("Notes"), None);
        let mut tree = with_examples_first(command());
        for verb in ["run", "report", "bench", "voxelize"] {
            let help = tree.find_subcommand_mut(verb).unwrap().render_long_help().to_string();
            let (examples, usage) = (help.find("Examples:"), help.find("Usage:"));
            assert!(examples.is_some() && examples < usage, "{help}");
        }
    }

    #[test]
    fn json_is_seen_before_parsing_and_only_where_it_is_a_flag() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("plimsoll doctor --json")));
        assert!(wants_json(&words("plimsoll --json nonsense")));
        assert!(!wants_json(&words("plimsoll run -- tool --json")));
    }
}
