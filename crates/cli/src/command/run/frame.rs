//! The names of call stack frames, as people read them.
//!
//! The guard writes what the C library prints: `/path/libx.so(symbol+0x1a)[0x7f…]`. The address is
//! another one in each run, and says nothing.

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are cut: those of templates can fill pages.
const LONGEST: usize = 160;

/// `symbol (libx.so)`, or the place in its file where there is no symbol.
pub(super) fn frame_name(frame: &str) -> String {
    let frame = frame.rsplit_once('[').map_or(frame, |(before, _)| before).trim();
    let Some((file, inside)) = frame.rsplit_once('(') else { return cut(file_name(frame)) };
    let inside = inside.trim_end_matches(')');
    let (symbol, offset) = inside.split_once('+').unwrap_or((inside, ""));
    match symbol {
        "" => cut(&format!("{}+{offset}", file_name(file))),
        symbol => cut(&format!("{} ({})", demangled(symbol), file_name(file))),
    }
}

/// C++ names as their authors wrote them.
fn demangled(symbol: &str) -> String {
    let plain = || symbol.to_string();
    if !symbol.starts_with("_Z") {
        return plain();
    }
    Symbol::new(symbol)
        .ok()
        .and_then(|name| name.demangle(&DemangleOptions::default()).ok())
        .unwrap_or_else(plain)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn cut(name: &str) -> String {
    crate::page::cut(name, LONGEST)
}

/// Whether a frame is of the Python interpreter, whose own lines no native stack has.
pub(super) fn is_python(frame: &str) -> bool {
    let file = file_name(frame.split('(').next().unwrap_or(frame));
    file.starts_with("libpython") || file.starts_with("python")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_its_function_and_its_file() {
        for (frame, name) in [
            ("/lib/libc.so.6(__libc_start_main+0x85)[0x7fe8]", "__libc_start_main (libc.so.6)"),
            ("/tmp/client(+0x1879)[0x55d1]", "client+0x1879"),
            ("./a.out(main) [0x1]", "main (a.out)"),
            (
                "/x/libtorch.so(_ZN3c104cuda6mallocEm+0x1)[0x1]",
                "c10::cuda::malloc(unsigned long) (libtorch.so)",
            ),
            ("/x/liby.so(_Znonsense)[0x1]", "_Znonsense (liby.so)"),
            ("[0x7ffe]", ""),
            ("odd", "odd"),
        ] {
            assert_eq!(frame_name(frame), name, "{frame}");
        }
        assert_eq!(
            frame_name(&format!("/a({}+0x1)[0x1]", "x".repeat(999))).chars().count(),
            LONGEST
        );
        assert!(is_python("/usr/lib/libpython3.11.so.1.0(_PyEval+0x1)[0x1]"));
        assert!(is_python("/usr/bin/python3.11(+0x1)[0x1]") && !is_python("/x/libc.so.6(a)[0x1]"));
    }
}
