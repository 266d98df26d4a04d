//! Which device has room for a model: every one is asked what is free there now.
//!
//! The kinds are tried in the order of [`BackendKind::REAL`]; of one kind the device with
//! the most free memory. Free is what the device itself says, with what other processes
//! hold taken off. Asking a GPU needs a context there, which takes some of that memory:
//! what is left is what a model can have.

use super::{BackendKind, DeviceId, count, open};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A device that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyedDevice {
    /// As it calls itself.
    pub name: String,
    /// All of its memory.
    pub total: Bytes,
    /// What nobody holds now.
    pub free: Bytes,
}

/// What came of asking for a device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Survey {
    /// Its name.
    pub device: DeviceId,
    /// The device, or why there is none.
    pub answer: Result<SurveyedDevice>,
}

/// Asks every kind for all of its devices. A kind that has none has one entry, with the
/// reason.
#[must_use]
pub fn survey() -> Vec<Survey> {
    BackendKind::REAL.into_iter().flat_map(of_kind).collect()
}

fn of_kind(kind: BackendKind) -> Vec<Survey> {
    let entry = |number, answer| Survey { device: DeviceId { kind, number }, answer };
    match count(kind) {
        Ok(count) => {
            (0..count).map(|number| entry(number, ask(DeviceId { kind, number }))).collect()
        }
        Err(error) => vec![entry(0, Err(error))],
    }
}

fn ask(device: DeviceId) -> Result<SurveyedDevice> {
    let device = open(device)?;
    let info = device.info();
    Ok(SurveyedDevice { name: info.name.clone(), total: info.total, free: device.free_memory()? })
}

/// The device for a model of this many bytes: the kind, and which of that kind.
///
/// ```
/// use plimsoll_memory::{Bytes, select_backend_for_model};
/// match select_backend_for_model(Bytes::mib(100)) {
///     Ok((backend, device)) => println!("use {backend} on device {device}"),
///     Err(error) => println!("{error}"),
/// }
/// let error = select_backend_for_model(Bytes::gib(1 << 30)).unwrap_err().to_string();
/// assert!(error.contains("cpu") && error.contains("free"), "{error}");
/// ```
///
/// # Errors
///
/// [`Error::Unavailable`] that lists every device with its free memory, and for every kind
/// without devices why it has none.
pub fn select_backend_for_model(bytes: impl Into<Bytes>) -> Result<(BackendKind, u32)> {
    let bytes = bytes.into();
    // One kind after the other: those behind the first that has room are not woken.
    let mut asked = Vec::new();
    for kind in BackendKind::REAL {
        let answers = of_kind(kind);
        if let Some(device) = roomiest(&answers, bytes) {
            return Ok((device.kind, device.number));
        }
        asked.extend(answers);
    }
    Err(nowhere(&asked, bytes))
}

/// Of the devices with room, the one with the most.
fn roomiest(answers: &[Survey], bytes: Bytes) -> Option<DeviceId> {
    let free = |survey: &Survey| survey.answer.as_ref().ok().map(|found| found.free);
    answers
        .iter()
        .filter_map(|survey| Some((free(survey)?, survey.device)))
        .filter(|(free, _)| *free >= bytes)
        // Of equals the first.
        .max_by_key(|(free, device)| (*free, std::cmp::Reverse(*device)))
        .map(|(_, device)| device)
}

fn nowhere(asked: &[Survey], bytes: Bytes) -> Error {
    let line = |Survey { device, answer }: &Survey| match answer {
        Ok(SurveyedDevice { name, total, free }) => {
            format!("{device} ({name}): {free} free of {total}")
        }
        Err(Error::Unavailable { why, .. }) => format!("{device}: {why}"),
        Err(error) => format!("{device}: {error}"),
    };
    Error::Unavailable {
        what: format!("a device with {bytes} free"),
        why: asked.iter().map(line).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: BackendKind, number: u32, free: u64) -> Survey {
        let found =
            SurveyedDevice { name: "x".to_string(), total: Bytes::gib(8), free: Bytes::gib(free) };
        Survey { device: DeviceId { kind, number }, answer: Ok(found) }
    }

    #[test]
    fn of_one_kind_the_device_with_most_room_is_taken_and_of_equals_the_first() {
        let cuda = |number, free| device(BackendKind::Cuda, number, free);
        let answers = [cuda(0, 1), cuda(1, 5), cuda(2, 7), cuda(3, 7)];
        let number = |bytes| roomiest(&answers, bytes).map(|device| device.number);
        assert_eq!(number(Bytes::gib(2)), Some(2));
        assert_eq!(number(Bytes::gib(7)), Some(2));
        assert_eq!(number(Bytes(Bytes::gib(7).0 + 1)), None);
    }

    #[test]
    fn the_refusal_lists_every_device_and_every_reason() {
        let why = "no libcuda.so.1".to_string();
        let answer = Err(Error::Unavailable { what: "CUDA".to_string(), why });
        let missing = Survey { device: BackendKind::Cuda.into(), answer };
        let asked = [missing, device(BackendKind::OpenCl, 1, 3), device(BackendKind::Host, 0, 2)];
        let text = nowhere(&asked, Bytes::gib(5)).to_string();
        for part in [
            "5.00 GiB free",
            "cuda:0: no libcuda.so.1",
            "opencl:1 (x): 3.00 GiB free of 8.00 GiB",
            "cpu (x): 2.00 GiB free",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn the_host_is_always_found_last() {
        let all = survey();
        assert_eq!(all.last().map(|last| last.device), Some(BackendKind::Host.into()));
        assert!(BackendKind::REAL.iter().all(|kind| all.iter().any(|s| s.device.kind == *kind)));
    }
}
