//! Finds functions in loaded libraries by reading their ELF symbol tables in memory.
//!
//! The guard exports `dlsym` itself, so it cannot ask `dlsym` for the real one. Linking against
//! `dlvsym` would tie it to one version of glibc, as these functions moved from libdl to libc in
//! 2.34. The tables of a loaded library say where its functions are, in every version and every C
//! library. Libraries are visited in the order in which names are looked up, and those up to the
//! guard itself are skipped. So the search finds what would have been called without the guard,
//! including the `dlsym` of another preloaded library, and not what a sanitizer in the program
//! itself has put in its place.
//!
//! The list of libraries is the loader's own, as a debugger reads it: `dl_iterate_phdr` is among
//! the functions that sanitizers replace, and theirs cannot be called before they have started.

#![expect(unsafe_code, reason = "reads the tables that the dynamic loader has mapped")]

use core::ffi::{c_char, c_void};

use crate::sys;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_DEBUG: u64 = 21;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// A program header of 64-bit ELF.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

/// A loaded object in the loader's list, with the fields that every C library has.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

/// The first fields of what the loader leaves for debuggers (`r_debug`).
#[repr(C)]
struct LoaderDebug {
    version: i32,
    first: *const LinkMap,
}

#[repr(C)]
struct ElfSymbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    /// The dynamic section of the object that contains this code.
    #[link_name = "_DYNAMIC"]
    static OWN_DYNAMIC: [u64; 2];
    fn getauxval(which: usize) -> usize;
}

/// The function of this name in the first library after the guard that has it; null for none.
pub(crate) fn next_function(name: &[u8]) -> *mut c_void {
    let mut passed_guard = false;
    let mut map = first_map();
    // SAFETY: the loader's list ends with a null. Names are looked up while the program starts, or
    // for the first time. An object that is unloaded at that moment does not have these functions,
    // which are the C library's.
    while let Some(object) = unsafe { map.as_ref() } {
        if passed_guard
            // SAFETY: the object is loaded.
            && let Some(tables) = unsafe { ElfTables::of(object.base, object.dynamic) }
            // SAFETY: as above.
            && let Some(value) = unsafe { tables.find(name) }
        {
            return (object.base + value) as *mut c_void;
        }
        passed_guard |= object.dynamic == &raw const OWN_DYNAMIC;
        map = object.next;
    }
    core::ptr::null_mut()
}

/// The first object of the loader's list, the program itself; null where it cannot be found.
fn first_map() -> *const LinkMap {
    const AT_PHDR: usize = 3;
    const AT_PHNUM: usize = 5;
    // SAFETY: these are numbers that the kernel has left for the process.
    let (at, count) = unsafe { (getauxval(AT_PHDR), getauxval(AT_PHNUM)) };
    if at == 0 {
        return core::ptr::null();
    }
    // SAFETY: the kernel says where the program's headers are, and how many.
    let headers = unsafe { core::slice::from_raw_parts(at as *const ProgramHeader, count) };
    let Some(base) = base_of(at, headers) else { return core::ptr::null() };
    let Some(header) = headers.iter().find(|header| header.kind == PT_DYNAMIC) else {
        return core::ptr::null();
    };
    let mut entry = base.wrapping_add(header.address as usize) as *const [u64; 2];
    loop {
        // SAFETY: the dynamic section ends with a zero tag.
        match unsafe { *entry } {
            [0, _] => return core::ptr::null(),
            [DT_DEBUG, debug] => {
                // SAFETY: the loader has left the address of its description there, or zero.
                let debug = unsafe { (debug as *const LoaderDebug).as_ref() };
                return debug.map_or(core::ptr::null(), |debug| debug.first);
            }
            // SAFETY: the end is not reached yet.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

/// The address at which a program was loaded, from the address of its headers.
fn base_of(at: usize, headers: &[ProgramHeader]) -> Option<usize> {
    /// The size of the file header, which the program headers follow.
    const FILE_HEADER: u64 = 64;
    let own = headers.iter().find(|header| header.kind == PT_PHDR).map(|header| header.address);
    let first = || {
        let mut loads = headers.iter().filter(|header| header.kind == PT_LOAD);
        loads.find(|header| header.offset == 0).map(|header| header.address + FILE_HEADER)
    };
    own.or_else(first).map(|address| at.wrapping_sub(address as usize))
}

struct ElfTables {
    strings: *const u8,
    symbols: *const ElfSymbol,
    gnu: *const u32,
    sysv: *const u32,
}

impl ElfTables {
    /// # Safety
    ///
    /// `base` and `dynamic` are those of a loaded object.
    unsafe fn of(base: usize, dynamic: *const [u64; 2]) -> Option<ElfTables> {
        let mut at = dynamic;
        if at.is_null() {
            return None;
        }
        let null = core::ptr::null();
        let mut tables = ElfTables {
            strings: core::ptr::null(),
            symbols: core::ptr::null(),
            gnu: null,
            sysv: null,
        };
        loop {
            // SAFETY: the dynamic section ends with a zero tag.
            let [tag, value] = unsafe { *at };
            // The loader has replaced these offsets by addresses, except in the kernel's own
            // object.
            let value = value as usize;
            let place = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                0 => break,
                DT_STRTAB => tables.strings = place as *const u8,
                DT_SYMTAB => tables.symbols = place as *const ElfSymbol,
                DT_GNU_HASH => tables.gnu = place as *const u32,
                DT_HASH => tables.sysv = place as *const u32,
                _ => {}
            }
            // SAFETY: the end is not reached yet.
            at = unsafe { at.add(1) };
        }
        (!tables.strings.is_null() && !tables.symbols.is_null()).then_some(tables)
    }

    /// # Safety
    ///
    /// The tables are those of a loaded object.
    unsafe fn find(&self, name: &[u8]) -> Option<usize> {
        // SAFETY: the same contract.
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
    /// As above, and there is a GNU hash table.
    unsafe fn find_gnu(&self, name: &[u8]) -> Option<usize> {
        let hash = name.iter().fold(5381u32, |h, &c| h.wrapping_mul(33).wrapping_add(c.into()));
        // SAFETY: the table begins with these four numbers, then the filter, the buckets, and a
        // hash for each symbol from the first on; the last of a chain has its lowest bit set.
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

    /// The value of a symbol, if it is a function that is defined in this library and has this
    /// name.
    ///
    /// # Safety
    ///
    /// `index` is within the symbol table.
    unsafe fn named(&self, index: usize, name: &[u8]) -> Option<usize> {
        const FUNCTION: u8 = 2;
        // SAFETY: the caller says that the symbol exists; its name lies in the strings and ends
        // with a zero.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let text = self.strings.add(symbol.name as usize);
            let defined = symbol.section != 0 && symbol.value != 0 && symbol.info & 15 == FUNCTION;
            (defined && sys::c_bytes(text.cast()) == name).then_some(symbol.value as usize)
        }
    }
}
