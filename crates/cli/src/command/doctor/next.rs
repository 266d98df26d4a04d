//! The end of the doctor's report: what works here, and one to three commands to go on with.

use serde::Serialize;

use super::DoctorReport;
use super::backends::BackendName;

/// How many commands are enough.
const MOST_STEPS: usize = 3;

/// Something to do next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NextStep {
    pub(super) why: String,
    pub(super) command: String,
}

fn step(why: &str, command: &str) -> NextStep {
    NextStep { why: why.to_string(), command: command.to_string() }
}

impl DoctorReport {
    fn has(&self, name: BackendName) -> bool {
        self.backends.iter().any(|backend| backend.name == name && backend.available)
    }

    fn engine(&self, name: &str) -> bool {
        self.engines.iter().any(|engine| engine.name == name && engine.found)
    }

    /// Whether it is not the machine that runs this program.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorded
    }

    fn is_distribution(&self, name: &str) -> bool {
        self.machine.distribution.value.as_deref().unwrap_or_default().contains(name)
    }
}

/// What works here, most wanted first.
pub(super) fn you_can(report: &DoctorReport) -> Vec<String> {
    let mut can = Vec::new();
    if report.has(BackendName::Cuda) {
        can.push("limit the GPU memory of CUDA programs (plimsoll run)".to_string());
    }
    let ort = report.engine("ort");
    can.push(
        match (ort, report.has(BackendName::Cuda)) {
            (true, true) => "measure detectors on the GPU and the processor (plimsoll bench)",
            (true, false) => {
                "measure detectors on the processor, with rten and ONNX Runtime (plimsoll bench)"
            }
            (false, _) => "measure detectors on the processor, with rten (plimsoll bench)",
        }
        .to_string(),
    );
    if report.engine("tensorrt") && report.has(BackendName::Cuda) {
        can.push("run TensorRT engines (plimsoll bench --engine tensorrt)".to_string());
    }
    can.push("tell whether a model fits, here or elsewhere (plimsoll estimate)".to_string());
    can.push("watch memory and see who holds it (plimsoll monitor, plimsoll report)".to_string());
    let devices = [(BackendName::Cuda, "CUDA"), (BackendName::Opencl, "OpenCL")];
    let on: Vec<&str> = devices
        .iter()
        .filter(|(name, _)| report.has(*name))
        .map(|(_, word)| *word)
        .chain(["the processor"])
        .collect();
    can.push(format!("voxelize point clouds on {} (plimsoll voxelize)", on.join(", ")));
    can
}

/// How the driver of a GPU that is there comes to this system.
fn nvidia_driver(report: &DoctorReport) -> NextStep {
    let why = "an NVIDIA GPU is here and its driver does not answer";
    match report {
        _ if report.in_container => {
            let why = format!("{why}: start the container with the GPUs");
            step(&why, "docker run --gpus all IMAGE plimsoll doctor")
        }
        _ if report.is_distribution("Ubuntu") => step(why, "sudo ubuntu-drivers install"),
        _ if report.is_distribution("Debian") => step(why, "sudo apt install nvidia-driver"),
        _ => step(&format!("{why}: see the files that were tried"), "plimsoll doctor --verbose"),
    }
}

/// What is missing and worth having comes first, then what there is to use.
pub(super) fn do_next(report: &DoctorReport) -> Vec<NextStep> {
    let mut steps = Vec::new();
    let hardware = report.hardware;
    let cuda = report.has(BackendName::Cuda);
    if let Some(denied) = report
        .permissions
        .iter()
        .find(|permission| !permission.readable && permission.path.starts_with("/dev/"))
    {
        let group = if denied.path.contains("renderD") || denied.path.contains("kfd") {
            "render,video"
        } else {
            "video"
        };
        steps.push(step(
            &format!("let this user open {} (then log in again)", denied.path),
            &format!("sudo usermod -aG {group} $USER"),
        ));
    }
    if hardware.nvidia && !cuda && !report.is_recorded() {
        steps.push(nvidia_driver(report));
    }
    if hardware.amd
        && !report.has(BackendName::Rocm)
        && !report.has(BackendName::Opencl)
        && !report.is_recorded()
    {
        steps.push(step(
            "an AMD GPU is here and no driver of it answers: see the files that were tried",
            "plimsoll doctor --verbose",
        ));
    }
    for engine in report.engines.iter().filter(|engine| engine.matters && cuda) {
        if let Some(command) = engine.command {
            steps.push(step(&format!("have {}", engine.serves), command));
        }
    }
    if cuda {
        steps.push(step(
            "run a program under a limit",
            "plimsoll run --gpu-mem-limit 8GiB -- PROGRAM",
        ));
    }
    if report.machine.jetson || hardware.any {
        steps.push(step("see who holds the memory now", "plimsoll report"));
    }
    steps.push(step("measure two small built-in detectors", "plimsoll bench"));
    steps.push(step("see who holds the memory now", "plimsoll report"));
    let mut seen: Vec<NextStep> = Vec::new();
    for step in steps {
        if seen.len() < MOST_STEPS && seen.iter().all(|other| other.command != step.command) {
            seen.push(step);
        }
    }
    seen
}
