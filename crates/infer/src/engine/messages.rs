//! Error messages of engines, cut to their cause.
//!
//! ONNX Runtime's errors name the source file, the whole signature of the C++ function, the host
//! and the expression, once for every stack frame; the cause is a few words among them. Users
//! see those words; logs keep the whole message.

/// How many characters are shown where no cause is found: of the beginning, which says what
/// happened, and of the end, which says what to do.
const HEAD: usize = 120;
const TAIL: usize = 120;

/// How many characters are shown of the end where it is whole clauses: a remedy in part is none.
const REMEDY: usize = 200;

/// The words that a cause begins with, the most specific first. A cause ends at ` ; `.
const CAUSES: [&str; 6] = [
    "CUDA failure ",
    "CUDNN failure ",
    "CUBLAS failure ",
    "Failed to allocate memory",
    "Available memory of ",
    "CUDA error ",
];

/// The words before a cause.
const BEFORE: [&str; 2] = [" with error: ", "Status Message: "];

/// The words of drivers, runtimes and engines for memory that was refused.
const FULL: [&str; 6] = [
    "out of memory",
    "out_of_memory",
    "alloc_failed",
    "failed to allocate memory",
    "available memory of ",
    "memoryallocation",
];

/// The cause in an engine's message, or its beginning and end where none is found.
#[must_use]
pub fn cause(said: &str) -> String {
    let lines = || said.lines().rev();
    let known =
        CAUSES.iter().find_map(|mark| lines().find_map(|line| Some(&line[line.rfind(mark)?..])));
    let after = || {
        BEFORE
            .iter()
            .find_map(|mark| lines().find_map(|line| Some(&line[line.rfind(mark)? + mark.len()..])))
    };
    let found = known.or_else(after).unwrap_or(said);
    let found = found.split(" ; ").next().unwrap_or(found);
    shortened(&found.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The system's message for a library that cannot be loaded; libloading has it as the cause of its
/// own error.
pub(super) fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether an engine's message says that memory was refused.
#[must_use]
pub fn is_out_of_memory(said: &str) -> bool {
    let said = said.to_lowercase();
    FULL.iter().any(|words| said.contains(words))
}

/// A long message without its middle: it begins with the fact and ends with the remedy.
#[must_use]
pub fn shortened(text: &str) -> String {
    if text.chars().count() <= HEAD + TAIL + 20 {
        return text.to_string();
    }
    let words: Vec<&str> = text.split(' ').collect();
    let fitting = |words: &mut dyn Iterator<Item = &&str>, most: usize| {
        let mut width = 0;
        let fits = |word: &&&str| {
            width += word.chars().count() + 1;
            width <= most
        };
        words.take_while(fits).count()
    };
    let head = fitting(&mut words.iter(), HEAD);
    let rest = words[head..].join(" ");
    let tail = last_clauses(&rest).map_or_else(
        || {
            let tail = fitting(&mut words[head..].iter().rev(), TAIL);
            words[words.len() - tail..].join(" ")
        },
        str::to_string,
    );
    let head = words[..head].join(" ");
    // A message that was cut before has one gap only.
    format!("{} … {}", head.trim_end_matches([' ', '…']), tail.trim_start_matches([' ', '…']))
}

/// As many whole clauses of the end as there is room for.
fn last_clauses(text: &str) -> Option<&str> {
    let clauses = text.match_indices("; ").map(|(at, mark)| &text[at + mark.len()..]);
    clauses.into_iter().find(|clauses| clauses.chars().count() <= REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As ONNX Runtime 1.20 says it on a GPU whose limit is below what CUDA takes.
    const CALL: &str = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:129 \
        std::conditional_t<THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, \
        const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = \
        cudaError; bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void, \
        common::Status> = void] CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; \
        file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; \
        line=280 ; expr=cudaMalloc((void**)&p, size); \n";

    #[test]
    fn an_error_is_cut_to_its_cause() {
        assert!(CALL.len() > 400);
        assert_eq!(cause(CALL), "CUDA failure 2: out of memory");
        let node =
            format!("Non-zero status code returned while running Conv. Status Message: {CALL}");
        assert_eq!(cause(&node), "CUDA failure 2: out of memory");
        let arena = "Non-zero status code returned while running Conv node. Name:'/model.0/Conv' \
            Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* \
            onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for \
            requested buffer of size 3276800\n";
        assert_eq!(cause(arena), "Failed to allocate memory for requested buffer of size 3276800");
        let library = "CUDA on device 0: Failed to load library libonnxruntime_providers_cuda.so \
            with error: libcublasLt.so.12: cannot open shared object file: No such file or directory";
        let missing =
            "libcublasLt.so.12: cannot open shared object file: No such file or directory";
        assert_eq!(cause(library), missing);
        assert_eq!(cause(&format!("{library}\n{CALL}")), "CUDA failure 2: out of memory");
        assert_eq!(cause("rten has no operator Foo"), "rten has no operator Foo");
        assert!(cause(&"word ".repeat(400)).chars().count() < 270);
    }

    #[test]
    fn a_refusal_of_memory_is_known_by_its_words() {
        for said in
            [CALL, "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation"]
        {
            assert!(is_out_of_memory(said), "{said}");
        }
        for said in ["libcublasLt.so.12: cannot open", "CUDA failure 100: no CUDA-capable device"] {
            assert!(!is_out_of_memory(said), "{said}");
        }
    }

    #[test]
    fn a_long_sentence_keeps_its_beginning_and_its_end() {
        assert_eq!(shortened("rten on cpu"), "rten on cpu");
        let long = format!("rten on cpu; looked for {} install it", "/a/library, ".repeat(50));
        let short = shortened(&long);
        assert!(short.chars().count() < 260, "{short}");
        assert!(short.starts_with("rten on cpu") && short.ends_with("install it"), "{short}");
        let remedy = "install NVIDIA's driver (on a Jetson: L4T's), or run where there is one; or \
                      take --device cpu, or leave it out to fall back";
        let long = format!("CUDA: tried {}; {remedy}", "libcuda.so (no such file), ".repeat(20));
        assert!(shortened(&long).ends_with(&format!(" … {remedy}")), "{}", shortened(&long));
        let one = shortened(&"x".repeat(900));
        assert!(one.chars().count() < 10, "a word that is too long is left out: {one}");
    }
}
