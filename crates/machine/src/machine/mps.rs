//! NVIDIA's MPS, whose daemon can hold a client to a limit.
//!
//! A client is held if `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` was in its environment when its
//! context was made; what CUDA takes for itself counts. The limit is per client, not for a
//! tree of processes, and the device still shows its full size. So it is set for children
//! before they start, and a process can only find out whether it was set for itself, and
//! try it.

use std::path::PathBuf;

use super::Machine;
use crate::error::{Error, Result};
use crate::units::Bytes;

/// The variable that a client reads when its context is made: `0=8192M,1=4G`.
pub const MPS_LIMIT_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const FOLDER_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const FOLDER: &str = "/tmp/nvidia-mps";
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";

/// A daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mps {
    /// Where it listens.
    pub folder: PathBuf,
    /// The process.
    pub pid: u32,
}

impl Machine {
    /// The MPS daemon that clients here would find.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] that says where it was looked for, and how one is started.
    pub fn mps(&self) -> Result<Mps> {
        let told = self.is_here().then(|| std::env::var(FOLDER_VARIABLE).ok()).flatten();
        let folder = told.unwrap_or_else(|| FOLDER.to_string());
        let file = format!("{folder}/{PID_FILE}");
        let none = |why: &str| Error::Unavailable {
            what: "an MPS daemon".to_string(),
            why: format!("{file}: {why}; start one with nvidia-cuda-mps-control -d"),
        };
        let text = self.read(&file).ok_or_else(|| none("there is none"))?;
        let pid: u32 = text.trim().parse().map_err(|_| none("it holds no process number"))?;
        if !self.on_disk(&format!("/proc/{pid}")).is_dir() {
            return Err(none("the process that it names has gone"));
        }
        Ok(Mps { folder: folder.into(), pid })
    }
}

/// The limit that this process's environment sets for a device, where an MPS client reads
/// it.
#[must_use]
pub fn mps_client_limit(device: u32) -> Option<Bytes> {
    parse_mps_limit(&std::env::var(MPS_LIMIT_VARIABLE).ok()?, device)
}

/// Reads `0=8192M,1=4G`: a limit for each device, in MPS's own units, which are binary.
#[must_use]
pub fn parse_mps_limit(text: &str, device: u32) -> Option<Bytes> {
    let entry = |part: &str| {
        let (number, size) = part.split_once('=')?;
        (number.trim().parse() == Ok(device)).then(|| size.trim().to_string())
    };
    let size = text.split(',').find_map(entry)?;
    let (digits, scale) = match size.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1 << 30),
        None => (size.strip_suffix(['M', 'm'])?, 1 << 20),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(scale).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_mps_writes_them() {
        let text = "0=8192M, 1=4G,2=512m";
        assert_eq!(parse_mps_limit(text, 0), Some(Bytes::gib(8)));
        assert_eq!(parse_mps_limit(text, 1), Some(Bytes::gib(4)));
        assert_eq!(parse_mps_limit(text, 2), Some(Bytes::mib(512)));
        assert_eq!(parse_mps_limit(text, 3), None);
        for nonsense in ["", "=", "0=", "0=M", "0=8", "0=8T", "x=8G", "0=99999999999999999999G"] {
            assert_eq!(parse_mps_limit(nonsense, 0), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_daemon_is_one_whose_process_runs() {
        let root = std::env::temp_dir().join(format!("plimsoll-mps-{}", std::process::id()));
        let folder = root.join("tmp/nvidia-mps");
        std::fs::create_dir_all(&folder).unwrap();
        let machine = Machine::recorded(&root);
        let why = || machine.mps().unwrap_err().to_string();
        assert!(why().contains("there is none") && why().contains("mps-control -d"), "{}", why());
        std::fs::write(folder.join(PID_FILE), "what\n").unwrap();
        assert!(why().contains("no process number"), "{}", why());
        std::fs::write(folder.join(PID_FILE), "4242\n").unwrap();
        assert!(why().contains("has gone"), "{}", why());
        std::fs::create_dir_all(root.join("proc/4242")).unwrap();
        assert_eq!(machine.mps().unwrap(), Mps { folder: FOLDER.into(), pid: 4242 });
        std::fs::remove_dir_all(root).unwrap();
    }
}
