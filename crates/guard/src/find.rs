//! Finds functions in the libraries that are loaded, by reading their symbol tables in
//! memory.
//!
//! The guard exports `dlsym` itself, so it cannot ask `dlsym` where the real one is; and to
//! be linked against `dlvsym` would tie it to one version of glibc, as these functions moved
//! from libdl to libc with 2.34. The tables of a loaded library say where its functions are,
//! on every version and every C library. Libraries are visited in the order in which names
//! are looked up, and those up to the guard itself are passed over: what is found is what
//! would have been called without the guard, another preloaded library's `dlsym` included.

#![expect(unsafe_code, reason = "reads the tables that the dynamic loader has mapped")]

use core::ffi::{c_int, c_void};

use crate::sys::{self, ObjectInfo, ProgramHeader};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

struct Search<'a> {
    name: &'a [u8],
    passed_us: bool,
    found: usize,
}

/// The function of this name in the first library after the guard that has it.
pub(crate) fn next(name: &[u8]) -> *mut c_void {
    let mut search = Search { name, passed_us: false, found: 0 };
    // SAFETY: the visitor gets exactly this pointer, for as long as the call lasts.
    unsafe { sys::dl_iterate_phdr(visit, (&raw mut search).cast()) };
    search.found as *mut c_void
}

unsafe extern "C" fn visit(info: *mut ObjectInfo, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description and our own pointer.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
    if info.headers.is_null() {
        return 0;
    }
    // SAFETY: the loader says how many headers there are.
    let headers = unsafe { core::slice::from_raw_parts(info.headers, info.count.into()) };
    if !search.passed_us {
        search.passed_us = holds(info.base, headers, visit as *const () as usize);
        return 0;
    }
    // SAFETY: the object is loaded, and the loader holds its lock while we look.
    if let Some(tables) = unsafe { Tables::of(info.base, headers) } {
        // SAFETY: as above.
        search.found = unsafe { tables.find(search.name) }.map_or(0, |value| info.base + value);
    }
    c_int::from(search.found != 0)
}

fn holds(base: usize, headers: &[ProgramHeader], address: usize) -> bool {
    headers.iter().filter(|header| header.kind == PT_LOAD).any(|header| {
        let from = base.wrapping_add(header.address as usize);
        (from..from.wrapping_add(header.memory_size as usize)).contains(&address)
    })
}

struct Tables {
    strings: *const u8,
    symbols: *const Symbol,
    gnu: *const u32,
    sysv: *const u32,
}

impl Tables {
    /// # Safety
    ///
    /// `base` and `headers` are those of a loaded object.
    unsafe fn of(base: usize, headers: &[ProgramHeader]) -> Option<Tables> {
        let header = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
        let mut at = base.wrapping_add(header.address as usize) as *const [u64; 2];
        let null = core::ptr::null();
        let mut tables = Tables {
            strings: core::ptr::null(),
            symbols: core::ptr::null(),
            gnu: null,
            sysv: null,
        };
        loop {
            // SAFETY: the dynamic section ends with a zero tag.
            let [tag, value] = unsafe { *at };
            // The loader has made addresses of these, except in the kernel's own object.
            let value = value as usize;
            let place = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                0 => break,
                DT_STRTAB => tables.strings = place as *const u8,
                DT_SYMTAB => tables.symbols = place as *const Symbol,
                DT_GNU_HASH => tables.gnu = place as *const u32,
                DT_HASH => tables.sysv = place as *const u32,
                _ => {}
            }
            // SAFETY: the end was not reached yet.
            at = unsafe { at.add(1) };
        }
        (!tables.strings.is_null() && !tables.symbols.is_null()).then_some(tables)
    }

    /// # Safety
    ///
    /// The tables are those of a loaded object.
    unsafe fn find(&self, name: &[u8]) -> Option<usize> {
        // SAFETY: handed on.
        unsafe {
            match (self.gnu.is_null(), self.sysv.is_null()) {
                (false, _) => self.find_gnu(name),
                (true, false) => {
                    let count = *self.sysv.add(1);
                    (0..count as usize).find_map(|index| self.named(index, name))
                }
                _ => None,
            }
        }
    }

    /// # Safety
    ///
    /// As above, and the GNU hash table is there.
    unsafe fn find_gnu(&self, name: &[u8]) -> Option<usize> {
        let hash = name.iter().fold(5381u32, |h, &c| h.wrapping_mul(33).wrapping_add(c.into()));
        // SAFETY: the table begins with these four numbers, then the filter, the buckets, and
        // a hash for each symbol from the first on; a chain ends with its lowest bit set.
        unsafe {
            let (buckets, first, filter) = (*self.gnu, *self.gnu.add(1), *self.gnu.add(2));
            if buckets == 0 {
                return None;
            }
            let bucket = self.gnu.add(4 + filter as usize * 2);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let found = *chain.add((index - first) as usize);
                if found | 1 == hash | 1
                    && let Some(value) = self.named(index as usize, name)
                {
                    return Some(value);
                }
                if found & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// The value of a symbol, if it is a function that is defined here and has this name.
    ///
    /// # Safety
    ///
    /// `index` is within the symbol table.
    unsafe fn named(&self, index: usize, name: &[u8]) -> Option<usize> {
        const FUNCTION: u8 = 2;
        // SAFETY: the caller says that the symbol is there; its name lies in the strings and
        // ends with a zero.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let text = self.strings.add(symbol.name as usize);
            let defined = symbol.section != 0 && symbol.value != 0 && symbol.info & 15 == FUNCTION;
            (defined && sys::text(text.cast()) == name).then_some(symbol.value as usize)
        }
    }
}
