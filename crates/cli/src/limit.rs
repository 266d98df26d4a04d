//! The limit, as every verb takes it: `--gpu-mem-limit SIZE`.
//!
//! Three spellings of one flag, because all three are in use: the long one, the short
//! `--limit`, and `--gpu-mem-limit-gb N` in the unit that boards are sold by.
//! A verb flattens [`LimitArgs`] into its own flags and asks for
//! [`limit`](LimitArgs::limit).

use plimsoll::Bytes;

const GIB: f64 = (1u64 << 30) as f64;
/// Beyond any machine, and far below what would overflow.
const MOST_GIB: f64 = (1u64 << 30) as f64;
/// Below this a number must have a unit.
const LEAST_BARE: Bytes = Bytes::mib(1);

/// How much GPU memory there is to fit into.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LimitArgs {
    /// The most GPU memory there is, such as 8GiB or 7500MB
    #[arg(long, visible_alias = "limit", value_name = "SIZE", value_parser = size_above_zero)]
    gpu_mem_limit: Option<Bytes>,
    /// The same in GiB
    #[arg(long, value_name = "N", value_parser = gib, conflicts_with = "gpu_mem_limit")]
    gpu_mem_limit_gb: Option<Bytes>,
}

impl LimitArgs {
    /// The limit, where one was given.
    pub(crate) fn limit(&self) -> Option<Bytes> {
        self.gpu_mem_limit.or(self.gpu_mem_limit_gb)
    }
}

/// A size of at least one byte, for flags.
pub(crate) fn size_above_zero(text: &str) -> Result<Bytes, String> {
    match size(text)? {
        Bytes::ZERO => Err("it must be at least one byte".to_string()),
        size => Ok(size),
    }
}

/// A size, for flags. A small number without a unit is refused as a likely mistake: no device has
/// so few bytes, and `8B` says that bytes are meant.
pub(crate) fn size(text: &str) -> Result<Bytes, String> {
    let number = text.trim();
    let bare = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse::<Bytes>() {
        // There are no fractions of a byte.
        Ok(_) if bare && number.contains('.') => {
            Err(format!("{number} needs a unit; say {number}GiB or {number}MiB"))
        }
        Ok(size) if bare && size > Bytes::ZERO && size < LEAST_BARE => {
            Err(format!("that is {number} bytes; say {number}GiB or {number}MiB, or {number}B"))
        }
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

fn gib(text: &str) -> Result<Bytes, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= MOST_GIB => {
            Ok(Bytes((number * GIB).round() as u64))
        }
        _ => Err("it must be a number of GiB above 0, such as 8 or 7.5".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct LimitCommand {
        #[command(flatten)]
        limit: LimitArgs,
    }

    fn limit(words: &[&str]) -> Option<Option<Bytes>> {
        LimitCommand::try_parse_from([&["plimsoll"], words].concat())
            .ok()
            .map(|line| line.limit.limit())
    }

    #[test]
    fn all_spellings_mean_the_same() {
        for words in [
            &["--gpu-mem-limit", "8GiB"][..],
            &["--limit=8GiB"],
            &["--gpu-mem-limit-gb", "8"],
            &["--gpu-mem-limit-gb", "8.0"],
            &["--limit", "8589934592"],
        ] {
            assert_eq!(limit(words), Some(Some(Bytes::gib(8))), "{words:?}");
        }
        assert_eq!(limit(&["--limit", "8B"]), Some(Some(Bytes(8))));
        assert_eq!(limit(&["--limit", "1048576"]), Some(Some(Bytes::mib(1))));
        assert_eq!(limit(&[]), Some(None));
    }

    #[test]
    fn a_small_number_is_asked_for_its_unit() {
        assert_eq!(size("8").unwrap_err(), "that is 8 bytes; say 8GiB or 8MiB, or 8B");
        assert_eq!(size("8.5").unwrap_err(), "8.5 needs a unit; say 8.5GiB or 8.5MiB");
        assert_eq!(size("0"), Ok(Bytes::ZERO));
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for words in [
            &["--limit", "0"][..],
            &["--limit", "much"],
            &["--limit", "8"],
            &["--limit", "1048575"],
            &["--limit", "8.5"],
            &["--limit", "0.2"],
            &["--gpu-mem-limit-gb", "0"],
            &["--gpu-mem-limit-gb", "-1"],
            &["--gpu-mem-limit-gb", "NaN"],
            &["--gpu-mem-limit-gb", "inf"],
            &["--gpu-mem-limit-gb", "8GiB"],
            &["--limit", "8GiB", "--gpu-mem-limit-gb", "8"],
        ] {
            assert_eq!(limit(words), None, "{words:?}");
        }
    }
}
