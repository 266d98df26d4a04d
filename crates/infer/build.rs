//! Compiles the shim for TensorRT where the feature asks for it, and does nothing else.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "tensorrt")]
    shim();
}

#[cfg(feature = "tensorrt")]
fn shim() {
    const SOURCE: &str = "src/engine/tensorrt/shim.cpp";
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=TENSORRT_INCLUDE");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file(SOURCE).warnings(false);
    if let Some(folders) = std::env::var_os("TENSORRT_INCLUDE") {
        for folder in std::env::split_paths(&folders) {
            println!("cargo::rerun-if-changed={}", folder.display());
            build.include(folder);
        }
    }
    build.include("/usr/local/cuda/include");
    build.compile("plimsoll_tensorrt");
    println!("cargo::rustc-link-lib=dl");
}
