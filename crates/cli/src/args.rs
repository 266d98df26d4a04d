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

use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser};

use plimsoll::text::one_line;

use crate::command::Verb;

const ABOUT: &str = "GPU memory: what fits, a hard limit, and honest measurement";

const EXAMPLES: &str = "\
Examples:
  plimsoll bench                  two detectors of its own on drawn scenes, measured
  plimsoll compare A B            whether the second run is slower
  plimsoll doctor                 what this machine is and can do
  plimsoll doctor --json          the same for programs
  plimsoll monitor                memory while it runs
  plimsoll estimate model.gguf --limit 8GiB       whether a model fits
  plimsoll fit model.gguf --limit 8GiB --vary context   the largest that fits
  plimsoll run --limit 8GiB -- python3 train.py   a hard limit of GPU memory
  plimsoll generate --tensorrt    build what .engine files need, where TensorRT is installed
  plimsoll help doctor            all about one verb

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
    parse_as_given(argv).map_err(|error| parse_as_given(tame).err().unwrap_or(error))
}

fn parse_as_given(argv: Vec<OsString>) -> Result<Args, clap::Error> {
    let mut command = command();
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

/// The tree as shells complete it: without the verbs that are hidden from help, which
/// scripts would offer all the same.
pub(crate) fn shown() -> Command {
    let command = command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    Command::new("plimsoll")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(verbs)
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
    fn json_is_seen_before_parsing_and_only_where_it_is_a_flag() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("plimsoll doctor --json")));
        assert!(wants_json(&words("plimsoll --json nonsense")));
        assert!(!wants_json(&words("plimsoll run -- tool --json")));
    }
}
