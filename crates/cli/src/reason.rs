//! Why something cannot be had, in short: loaders list every file that they tried, which only
//! `--verbose` shows.

/// The loader's words for a file that is not there. A file that is there and fails says something
/// else, and that is always shown.
const MISSING: &str = "cannot open shared object file";

/// The reason without the list of files, where none of them was there: the first, and the remedy.
pub(crate) fn brief(why: &str) -> String {
    let Some((tried, remedy)) = why.rsplit_once("; ") else { return why.to_string() };
    let listed = tried.strip_prefix("tried ");
    let listed = listed.or_else(|| tried.contains(" could not be loaded (").then_some(tried));
    let Some(listed) = listed else { return why.to_string() };
    if listed.matches(" (").count() > listed.matches(MISSING).count() {
        return why.to_string();
    }
    let first = listed.split([' ', ',']).next().unwrap_or_default();
    format!("{first} not found: {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_files_becomes_its_first_and_the_remedy() {
        let why = "tried libcuda.so.1 (cannot open shared object file: No such file), libcuda.so (cannot open shared object file: x); install NVIDIA's driver (on a Jetson: L4T's)";
        assert_eq!(
            brief(why),
            "libcuda.so.1 not found: install NVIDIA's driver (on a Jetson: L4T's)"
        );
        let why = "libnvidia-ml.so.1 could not be loaded (libnvidia-ml.so.1: cannot open shared object file: No such file); it comes with the driver";
        assert_eq!(brief(why), "libnvidia-ml.so.1 not found: it comes with the driver");
        assert_eq!(brief("it exists on macOS only"), "it exists on macOS only");
        let broken = "tried libcuda.so.1 (undefined symbol: x), libcuda.so (cannot open shared object file); install it";
        assert_eq!(brief(broken), broken, "it is there and fails");
    }
}
