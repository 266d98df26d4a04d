//! The part of the program that parses bytes from the network, as a library so that the fuzzer can
//! call it. Everything else is the binary's own.

pub mod http;
