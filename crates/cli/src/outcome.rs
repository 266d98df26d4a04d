//! How a run ends: the four exit codes, and which error means which.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | fine |
//! | 1 | it worked, and the answer is no: does not fit, regression, violation |
//! | 2 | bad usage or input: the caller can put it right |
//! | 3 | something failed |
//!
//! A verb returns [`Outcome`] or an `anyhow::Error`. An error is the caller's (2) when
//! a [`BadInput`] stands anywhere in its chain, or when the library says that a value
//! or a file was wrong; everything else is ours (3).

use std::fmt::{self, Display};
use std::process::ExitCode;

use anyhow::{Context, Error};

/// What a verb that ran to its end found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Fine.
    Yes,
    /// It worked, and the answer is no.
    No,
    /// There is an answer, and it says itself what to end with.
    Code(u8),
}

impl From<bool> for Outcome {
    fn from(yes: bool) -> Outcome {
        if yes { Outcome::Yes } else { Outcome::No }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Yes => ExitCode::SUCCESS,
            Outcome::No => ExitCode::from(1),
            Outcome::Code(code) => ExitCode::from(code),
        }
    }
}

/// Whose fault an error is; its name is `kind` in the JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The command line cannot be understood.
    Usage,
    /// A value or a file of the caller's is not what it should be.
    Input,
    /// Something failed.
    Failed,
    /// A bug of ours.
    Bug,
}

impl FaultKind {
    /// Reads the chain of causes.
    pub(crate) fn of(error: &Error) -> FaultKind {
        use plimsoll::Error::{Config, Malformed};
        let theirs = error.downcast_ref::<BadInput>().is_some()
            || matches!(
                error.chain().find_map(|cause| cause.downcast_ref::<plimsoll::Error>()),
                Some(Config { .. } | Malformed { .. })
            );
        if theirs { FaultKind::Input } else { FaultKind::Failed }
    }

    /// The name in the JSON form.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FaultKind::Usage => "usage",
            FaultKind::Input => "input",
            FaultKind::Failed => "failed",
            FaultKind::Bug => "bug",
        }
    }

    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            FaultKind::Usage | FaultKind::Input => 2,
            FaultKind::Failed | FaultKind::Bug => 3,
        }
    }
}

/// Marks an error as one that the caller can put right.
#[derive(Debug)]
pub(crate) struct BadInput(String);

impl Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

impl BadInput {
    /// An error with no cause below it.
    pub(crate) fn new(message: impl Display) -> BadInput {
        BadInput(message.to_string())
    }
}

/// `.or_bad_input(|| format!("cannot read {path}"))?`: the caller's fault, with its cause.
pub(crate) trait OrBadInput<T> {
    /// Says what was wrong with the input, and keeps the error as the cause.
    fn or_bad_input<M: Display>(self, message: impl FnOnce() -> M) -> anyhow::Result<T>;
}

impl<T, E> OrBadInput<T> for Result<T, E>
where
    Result<T, E>: Context<T, E>,
{
    fn or_bad_input<M: Display>(self, message: impl FnOnce() -> M) -> anyhow::Result<T> {
        self.with_context(|| BadInput::new(message()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn missing() -> io::Error {
        io::Error::from(io::ErrorKind::NotFound)
    }

    #[test]
    fn the_callers_errors_exit_2_and_ours_3() {
        let malformed = || plimsoll::Error::Malformed {
            what: "line 3".to_string(),
            why: "no size".to_string(),
        };
        let device = plimsoll::Error::Device { call: "mmap", why: "no".to_string() };
        for (error, kind) in [
            (Error::from(BadInput::new("no such verb")), FaultKind::Input),
            (Error::from(malformed()), FaultKind::Input),
            (Error::from(malformed()).context("cannot read trace.csv"), FaultKind::Input),
            (Error::from(missing()), FaultKind::Failed),
            (Error::from(device), FaultKind::Failed),
        ] {
            assert_eq!(FaultKind::of(&error), kind, "{error:#}");
        }
        assert_eq!((FaultKind::Input.code(), FaultKind::Failed.code()), (2, 3));
    }

    #[test]
    fn a_marked_error_keeps_its_cause() -> anyhow::Result<()> {
        let Err(error) = Err::<(), _>(missing()).or_bad_input(|| "cannot read a.onnx") else {
            anyhow::bail!("an error became a value");
        };
        let error = error.context("while estimating");
        assert_eq!(FaultKind::of(&error), FaultKind::Input);
        assert_eq!(error.chain().count(), 3);
        Ok(())
    }
}
