//! Driver libraries, tools and permissions, looked for as files.
//!
//! A file that is there may still fail to load (a container without its devices, a
//! driver of another version), so this says "found", never "works"; whether a driver
//! works is asked in `backends`.

use std::path::PathBuf;

use serde::Serialize;

use super::root::Root;

#[derive(Debug, Serialize)]
pub(super) struct DoctorLibrary {
    pub(super) name: &'static str,
    /// What it is the door to.
    pub(super) opens: &'static str,
    pub(super) path: Option<PathBuf>,
    pub(super) remedy: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    /// What it is good for here.
    pub(super) serves: &'static str,
    pub(super) path: Option<PathBuf>,
    pub(super) remedy: Option<&'static str>,
}

/// Name, other versions that do, what it opens, remedy.
const LIBRARIES: [(&str, &[&str], &str, &str); 4] = [
    (
        "libcuda.so.1",
        &[],
        "CUDA",
        "install the NVIDIA driver; in a container, start it with --gpus all",
    ),
    (
        "libnvidia-ml.so.1",
        &[],
        "NVML",
        "comes with the NVIDIA driver; a Jetson before Thor has none",
    ),
    (
        "libOpenCL.so.1",
        &[],
        "OpenCL",
        "install an OpenCL loader (Debian, Ubuntu: ocl-icd-libopencl1)",
    ),
    (
        "libamdhip64.so",
        &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"],
        "ROCm",
        "install ROCm's HIP runtime",
    ),
];

/// A file that a normal user may not be allowed to read.
#[derive(Debug, Serialize)]
pub(super) struct Permission {
    pub(super) path: &'static str,
    /// What it is good for here.
    pub(super) serves: &'static str,
    /// Whether this user may read it.
    pub(super) readable: bool,
    pub(super) remedy: Option<&'static str>,
}

/// Path, what it serves, remedy.
const GUARDED: [(&str, &str, &str); 6] = [
    (
        "/dev/nvidiactl",
        "NVIDIA's driver",
        "give this user access to /dev/nvidia*; in a container, start it with --gpus all",
    ),
    ("/dev/nvmap", "a Jetson's GPU memory", "add this user to the group video"),
    ("/dev/nvhost-ctrl-gpu", "a Jetson's GPU", "add this user to the group video"),
    ("/dev/kfd", "AMD's driver", "add this user to the groups render and video"),
    ("/dev/dri/renderD128", "GPUs of other makers", "add this user to the group render"),
    (
        "/sys/kernel/debug/nvmap/iovmm/clients",
        "how much of a Jetson's GPU memory each process uses",
        "run as root; the kernel shows it to nobody else",
    ),
];

/// Of the files that are there, which may be read. Of a recorded machine nothing is known:
/// its users are not ours.
pub(super) fn permissions(root: &Root) -> Vec<Permission> {
    if !root.is_live() {
        return Vec::new();
    }
    let permission = |(path, serves, remedy)| {
        let readable = match std::fs::File::open(path) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => error.kind() != std::io::ErrorKind::PermissionDenied,
        };
        Some(Permission { path, serves, readable, remedy: (!readable).then_some(remedy) })
    };
    GUARDED.into_iter().filter_map(permission).collect()
}

const MPS: &str = "nvidia-cuda-mps-control";

/// Name, what it serves, remedy.
const TOOLS: [(&str, &str, &str); 6] = [
    ("tegrastats", "a Jetson's own figures", "comes with Jetson Linux (nvidia-l4t-tools)"),
    ("nvidia-smi", "the NVIDIA driver's own figures", "comes with the NVIDIA driver"),
    ("nvpmodel", "a Jetson's power mode", "comes with Jetson Linux (nvidia-l4t-nvpmodel)"),
    (
        MPS,
        "a hard limit for each CUDA client",
        "comes with the NVIDIA driver (nvidia-compute-utils)",
    ),
    ("ffmpeg", "video other than H.264 in MP4", "install the package ffmpeg"),
    ("gst-launch-1.0", "CSI cameras and hardware decoders", "install gstreamer1.0-tools"),
];

/// Elements of GStreamer that `bench` reaches a Jetson's hardware with: name, the file of its
/// plugin, what it serves, remedy.
const ELEMENTS: [(&str, &str, &str, &str); 2] = [
    (
        "nvarguscamerasrc",
        "libgstnvarguscamerasrc.so",
        "CSI cameras, as a source gst='nvarguscamerasrc ! …'",
        "comes with Jetson Linux (nvidia-l4t-gstreamer)",
    ),
    (
        "nvv4l2decoder",
        "libgstnvvideo4linux2.so",
        "the hardware's video decoder, in a source gst='…'",
        "comes with Jetson Linux (nvidia-l4t-gstreamer)",
    ),
];

const LIBRARY_FOLDERS: [&str; 17] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/compat",
    "/usr/local/nvidia/lib64",
    "/opt/rocm/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// More folders than any loader is configured with.
const MOST_CONFIGURED: usize = 256;

const TOOL_FOLDERS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub(super) fn libraries(root: &Root) -> Vec<DoctorLibrary> {
    let folders = library_folders(root);
    let library = |(name, others, opens, remedy): (_, &[&str], _, _)| {
        let path = std::iter::once(name)
            .chain(others.iter().copied())
            .find_map(|n| find(root, &folders, n));
        DoctorLibrary { name, opens, remedy: path.is_none().then_some(remedy), path }
    };
    LIBRARIES.into_iter().map(library).collect()
}

/// Tools that serve only a Jetson have no remedy elsewhere.
pub(super) fn tools(root: &Root, jetson: bool) -> Vec<Tool> {
    let folders = tool_folders(root);
    let tool = |(name, serves, remedy): (&'static str, _, &'static str)| {
        let path = find(root, &folders, name);
        let remedy = match name {
            "tegrastats" | "nvpmodel" if !jetson => NO_JETSON,
            MPS if jetson => "NVIDIA has it for Jetson Thor, in JetPack 7",
            _ => remedy,
        };
        Tool { name, serves, remedy: path.is_none().then_some(remedy), path }
    };
    let plugins: Vec<String> = from_environment(root, "GST_PLUGIN_PATH")
        .into_iter()
        .chain(library_folders(root).iter().map(|folder| format!("{folder}/gstreamer-1.0")))
        .collect();
    let element = |(name, file, serves, remedy): (&'static str, &str, _, &'static str)| {
        let path = find(root, &plugins, file);
        let remedy = if jetson { remedy } else { NO_JETSON };
        Tool { name, serves, remedy: path.is_none().then_some(remedy), path }
    };
    TOOLS.into_iter().map(tool).chain(ELEMENTS.into_iter().map(element)).collect()
}

pub(super) const NO_JETSON: &str = "not needed: this is no Jetson";

pub(super) fn find(root: &Root, folders: &[String], name: &str) -> Option<PathBuf> {
    let paths = folders.iter().map(|folder| format!("{}/{name}", folder.trim_end_matches('/')));
    paths.into_iter().find(|path| root.machine().has_file(path)).map(PathBuf::from)
}

/// The loader's order: the environment, the configuration of `ld.so`, the usual places.
pub(super) fn library_folders(root: &Root) -> Vec<String> {
    let configured = root
        .machine()
        .list("/etc/ld.so.conf.d")
        .into_iter()
        .filter_map(|file| root.machine().read(&file));
    let configured = configured
        .flat_map(|text| text.lines().map(str::trim).map(String::from).collect::<Vec<_>>());
    from_environment(root, "LD_LIBRARY_PATH")
        .into_iter()
        .chain(configured.filter(|line| line.starts_with('/')).take(MOST_CONFIGURED))
        .chain(LIBRARY_FOLDERS.map(String::from))
        .collect()
}

fn tool_folders(root: &Root) -> Vec<String> {
    let path = from_environment(root, "PATH");
    if path.is_empty() { TOOL_FOLDERS.map(String::from).to_vec() } else { path }
}

/// The absolute folders of a variable such as `PATH`; none for a recorded machine, whose
/// environment is not ours.
fn from_environment(root: &Root, name: &str) -> Vec<String> {
    let value = root.is_live().then(|| std::env::var_os(name)).flatten().unwrap_or_default();
    std::env::split_paths(&value)
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| folder.into_os_string().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_library_is_found_where_the_loader_is_told_to_look() {
        let folder = tree(&[
            ("etc/ld.so.conf.d/vendor.conf", "# the vendor's\n/opt/vendor/lib\n"),
            ("opt/vendor/lib/libcuda.so.1", ""),
            ("opt/rocm/lib/libamdhip64.so.6", ""),
        ]);
        let found = libraries(&Root::new(folder.path()));
        assert_eq!(found[0].path.as_deref(), Some(Path::new("/opt/vendor/lib/libcuda.so.1")));
        assert_eq!(found[0].remedy, None);
        assert_eq!(found[1].path, None);
        assert!(found[1].remedy.is_some());
        assert_eq!(found[3].path.as_deref(), Some(Path::new("/opt/rocm/lib/libamdhip64.so.6")));
    }

    #[test]
    fn a_loader_that_is_told_of_everything_is_not_believed() {
        let folder = tree(&[("etc/ld.so.conf.d/a.conf", &"/a\n".repeat(100_000))]);
        let folders = library_folders(&Root::new(folder.path()));
        assert_eq!(folders.len(), MOST_CONFIGURED + LIBRARY_FOLDERS.len());
    }

    #[test]
    fn what_is_not_needed_has_no_remedy_to_follow() {
        let folder = tree(&[("usr/bin/ffmpeg", "")]);
        let root = Root::new(folder.path());
        let remedy = |jetson: bool| tools(&root, jetson)[0].remedy;
        assert_eq!(remedy(false), Some("not needed: this is no Jetson"));
        assert!(remedy(true).is_some_and(|text| text.contains("Jetson Linux")));
        let ffmpeg = tools(&root, false).into_iter().find(|tool| tool.name == "ffmpeg");
        assert!(ffmpeg.is_some_and(|tool| tool.path.is_some()));
    }

    #[test]
    fn elements_of_gstreamer_are_found_by_their_plugins() {
        let plugin = "usr/lib/aarch64-linux-gnu/gstreamer-1.0/libgstnvarguscamerasrc.so";
        let folder = tree(&[(plugin, "")]);
        let found = tools(&Root::new(folder.path()), true);
        let of = |name: &str| found.iter().find(|tool| tool.name == name);
        assert!(of("nvarguscamerasrc").is_some_and(|tool| tool.path.is_some()));
        let decoder = of("nvv4l2decoder").and_then(|tool| tool.remedy);
        assert!(decoder.is_some_and(|remedy| remedy.contains("nvidia-l4t-gstreamer")));
    }
}
