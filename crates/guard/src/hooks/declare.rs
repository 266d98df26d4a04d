//! The macro that turns the rows of [`super::intercepted_calls`] into exported functions.

/// Properties of an intercepted call, named in brackets in its row.
pub(super) mod flag {
    /// The call takes GPU memory. A process that must be counted and cannot be is refused it.
    pub(in crate::hooks) const TAKES_MEMORY: u8 = 1;
    /// The variant that uses the calling thread's own default stream.
    pub(in crate::hooks) const PER_THREAD: u8 = 2;
}

/// Declares intercepted calls: for each row the exported function, the address of the driver's
/// own function, and its entry in `INTERCEPTED_CALLS`.
///
/// A row is
///
/// ```text
/// exported_name as "name for cuGetProcAddress" since VERSION [FLAGS]
///     (the driver's arguments) => family::handler(arguments that it needs);
/// ```
///
/// The handler also gets this process's [`crate::attach::ProcessGuard`] as its first argument,
/// and as its last one the call of the driver's own function with all arguments.
macro_rules! intercepted_calls {
    ($($name:ident as $base:literal since $since:literal $([$($flag:ident)+])?
       ($($arg:ident: $type:ty),*) => $family:ident::$handler:ident($($given:expr),*);)*) => {
        $(
            /// Stands in for the driver's function of this name.
            ///
            /// # Safety
            ///
            /// The same as for the driver's function.
            #[cfg_attr(preload, unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> DriverCode {
                type Function = unsafe extern "C" fn($($type),*) -> DriverCode;
                const TAKES_MEMORY: bool = (0 $($(| flag::$flag)+)?) & flag::TAKES_MEMORY != 0;
                let real = real_functions::$name.get();
                if real == 0 {
                    return NOT_FOUND;
                }
                // SAFETY: the address is that of the driver's function of this name, which
                // has this signature.
                let real = unsafe { core::mem::transmute::<usize, Function>(real) };
                // SAFETY: the program passed these arguments for the driver.
                let call = || unsafe { real($($arg),*) };
                match attached() {
                    // SAFETY: these are arguments of a call of the driver's function.
                    Some(guard) => unsafe { super::$family::$handler(guard, $($given,)* call) },
                    None if TAKES_MEMORY && crate::attach::is_closed() => OUT_OF_MEMORY,
                    None => call(),
                }
            }
        )*

        /// Where the driver's own functions are.
        #[expect(non_upper_case_globals, reason = "the driver's names")]
        mod real_functions {
            use super::{RealFunction, c_name};
            $(pub(super) static $name: RealFunction =
                RealFunction::new(c_name(concat!(stringify!($name), "\0")));)*
        }

        /// Every function that the guard intercepts.
        pub(crate) static INTERCEPTED_CALLS: &[HookEntry] = &[
            $(HookEntry {
                name: c_name(concat!(stringify!($name), "\0")),
                base: $base.as_bytes(),
                since: $since,
                per_thread: (0 $($(| flag::$flag)+)?) & flag::PER_THREAD != 0,
                hook: $name as *const (),
                real: &real_functions::$name,
            },)*
        ];
    };
}

pub(super) use intercepted_calls;
