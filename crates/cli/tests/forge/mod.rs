//! Makes hostile checkpoints: a table of pickles, and zip files bent at one place.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

/// A file, and a word of the message that must refuse it.
pub(crate) struct Forged {
    pub(crate) what: String,
    pub(crate) file: Vec<u8>,
    pub(crate) word: String,
}

fn forged(what: &str, file: Vec<u8>, word: &str) -> Forged {
    Forged { what: what.into(), file, word: word.into() }
}

const LOCAL: &[u8; 4] = b"PK\x03\x04";
const CENTRAL: &[u8; 4] = b"PK\x01\x02";
const END: &[u8; 4] = b"PK\x05\x06";

/// An entry of a zip file: its name, its contents, whether it is packed.
type Entry<'a> = (&'a str, &'a [u8], bool);

fn zip(entries: &[Entry<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data, packed) in entries {
        let mut crc = Crc::new();
        crc.update(data);
        let stored = if *packed { deflate(data) } else { data.to_vec() };
        let mut common = vec![20, 0, 0, 8, if *packed { 8 } else { 0 }, 0, 0, 0, 0, 0];
        for number in [crc.sum(), stored.len() as u32, data.len() as u32] {
            common.extend(number.to_le_bytes());
        }
        common.extend([(name.len() as u16).to_le_bytes(), [0; 2]].concat());
        let offset = (file.len() as u32).to_le_bytes();
        file.extend([&LOCAL[..], &common[..], name.as_bytes(), &stored].concat());
        let entry =
            [&CENTRAL[..], &[20, 0], &common[..], &[0; 10], &offset, name.as_bytes()].concat();
        directory.extend(entry);
    }
    let count = (entries.len() as u16).to_le_bytes();
    let size = (directory.len() as u32).to_le_bytes();
    let start = (file.len() as u32).to_le_bytes();
    [&file, &directory, &END[..], &[0; 4], &count, &count, &size, &start, &[0; 2]].concat()
}

fn deflate(data: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail, and a file that is not whole fails its test.
    let _ = encoder.write_all(data);
    encoder.finish().unwrap_or_default()
}

/// A checkpoint with this pickle and one storage of sixteen numbers.
fn checkpoint(pickle: &[u8]) -> Vec<u8> {
    zip(&[("x/data.pkl", pickle, false), ("x/data/0", &[0; 64], false)])
}

/// The same, packed: small on the disk, whatever it becomes.
fn packed(pickle: &[u8]) -> Vec<u8> {
    zip(&[("x/data.pkl", pickle, true)])
}

/// Puts bytes at an offset of the n-th record with this signature.
fn bent(mut file: Vec<u8>, record: &[u8; 4], nth: usize, at: usize, with: &[u8]) -> Vec<u8> {
    let mut places = file.windows(4).enumerate().filter(|(_, window)| window == record);
    let place = places.nth(nth).map_or(0, |(place, _)| place) + at;
    file[place..place + with.len()].copy_from_slice(with);
    file
}

/// Pickles that name code, whole or broken, held or thrown away.
pub(crate) fn names() -> Vec<Forged> {
    let pickles: &[(&str, &[u8], &str)] = &[
        ("GLOBAL and REDUCE", b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        ("STACK_GLOBAL", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", "os.system"),
        ("by its other name", b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R.", "posix.system"),
        ("INST", b"(S'true'\nios\nsystem\n.", "os.system"),
        ("OBJ", b"(cos\nsystem\nS'true'\no.", "os.system"),
        ("eval", b"cbuiltins\neval\n(S'1+1'\ntR.", "builtins.eval"),
        ("exec", b"c__builtin__\nexec\n(S'1'\ntR.", "__builtin__.exec"),
        ("import", b"c__builtin__\n__import__\n(S'os'\ntR.", "__builtin__.__import__"),
        ("NEWOBJ", b"\x80\x02csubprocess\nPopen\nX\x04\0\0\0true\x85\x81.", "subprocess.Popen"),
        ("NEWOBJ_EX", b"\x80\x04csubprocess\nPopen\n)}\x92.", "subprocess.Popen"),
        ("BUILD of a module", b"cos\nenviron\n}S'a'\nS'b'\nsb.", "os.environ"),
        ("a name without a call", b"cos\nsystem\n.", "os.system"),
        ("thrown away", b"cos\nsystem\n(S'true'\ntR0N.", "os.system"),
        ("in the memo only", b"cos\nsystem\nq\x000N.", "os.system"),
        ("then nonsense", b"cos\nsystem\n(S'true'\ntR\xff", "os.system"),
        ("then the end", b"cos\nsystem\n(S'true'\ntR", "os.system"),
        ("a class, then nonsense", b"\x80\x02cmine\nThing\n)\x81\xff", "mine.Thing"),
        ("a factory", b"ccollections\ndefaultdict\n(cos\nsystem\ntR.", "os.system"),
        ("for copyreg", b"ccopyreg\n_reconstructor\n(cos\nsystem\ncx\nY\nNtR.", "os.system"),
        ("as a persistent id", b"cos\nsystem\nQ.", "os.system"),
        ("as a key", b"}cos\nsystem\nNs.", "os.system"),
        ("through a class", b"ctorch.nn.modules.conv\nConv2d.__init__\n.", "Conv2d.__init__"),
        ("getattr", b"c__builtin__\ngetattr\n(cpathlib\nPath\nS'cwd'\ntR.", "getattr of \"cwd\""),
        (
            "getattr by INST",
            b"(cpathlib\nPath\nS'cwd'\nibuiltins\ngetattr\n.",
            "getattr of \"cwd\"",
        ),
        ("a pickle in it", b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.", "_load_from_bytes"),
        ("another file", b"cultralytics.nn.tasks\ntorch_safe_load\n(S'x'\ntR.", "torch_safe_load"),
        ("hub", b"ctorch.hub\nload\n(S'a'\ntR.", "torch.hub.load"),
        ("runpy", b"crunpy\n_run_code\n.", "runpy._run_code"),
        ("a name that moves the terminal", b"cos\x1b[2J\nsystem\n.", "\\u{1b}[2J.system"),
        ("EXT1", b"\x80\x02\x82\x01.", "extension registry"),
        ("EXT2", b"\x80\x02\x83\x01\x00.", "extension registry"),
        ("EXT4", b"\x80\x02\x84\x01\0\0\0.", "extension registry"),
    ];
    let mut all: Vec<Forged> =
        pickles.iter().map(|(what, pickle, word)| forged(what, checkpoint(pickle), word)).collect();
    // As the class of the model itself, called.
    let model = b"\x80\x02}X\x05\0\0\0modelcos\nsystem\n)R}X\x08\0\0\0_modules}sbs.";
    all.push(forged("as the model", checkpoint(model), "os.system"));
    all
}

/// Zip files bent at one place, cut, or with names that lead elsewhere.
pub(crate) fn zips() -> Vec<Forged> {
    let good = checkpoint(b"\x80\x02N.");
    let bend = |what: &str, record: &[u8; 4], nth, at, with: &[u8], word: &str| {
        forged(what, bent(good.clone(), record, nth, at, with), word)
    };
    let data: Entry<'_> = ("x/data.pkl", b"\x80\x02N.", false);
    let mut all = vec![
        bend("encrypted", CENTRAL, 0, 8, &[1], "encrypted"),
        bend("of another method", CENTRAL, 0, 10, &[99], "directory that is damaged"),
        bend("a wrong checksum", CENTRAL, 0, 16, &[1, 2, 3, 4], "checksum"),
        bend("packed past the end", CENTRAL, 1, 20, &[0xf0; 4], "past the end"),
        bend("a size of 4 GiB", CENTRAL, 0, 24, &[0xfe; 4], "cannot be"),
        bend("wide, without the field", CENTRAL, 0, 20, &[0xff; 8], "past the end"),
        bend("an offset past the end", CENTRAL, 0, 42, &[0xee; 4], "not where the directory"),
        bend("the other's header", CENTRAL, 1, 42, &[0; 4], "not where the directory"),
        bend("over the next entry", CENTRAL, 0, 20, &[60, 0, 0, 0, 60], "over each other"),
        bend("another name inside", LOCAL, 0, 30, b"y", "not where the directory"),
        bend("a name of 64 KiB", CENTRAL, 0, 28, &[0xff, 0xff], "directory that is damaged"),
        bend("no directory entry", CENTRAL, 1, 0, b"PKxx", "directory that is damaged"),
        bend("65534 entries", END, 0, 8, &[0xfe, 0xff, 0xfe, 0xff], "65534 entries"),
        bend("a directory elsewhere", END, 0, 16, &[0xf0; 4], "outside the file"),
        bend("a directory of 4 GiB", END, 0, 12, &[0xf0; 4], "outside the file"),
        bend("of several disks", END, 0, 4, &[1], "in several"),
        bend("a comment that is not there", END, 0, 20, &[9], "no zip directory"),
        forged("two of one name", zip(&[data, data]), "two entries"),
        forged("two pickles", zip(&[data, ("y/data.pkl", b"N.", false)]), "more than one"),
        forged("an absolute name", zip(&[("/etc/data.pkl", b"N.", false)]), "leads out"),
        forged("a name upwards", zip(&[data, ("x/../../a", b"", false)]), "leads out"),
        forged("a name with a backslash", zip(&[data, ("x\\a", b"", false)]), "leads out"),
        forged("no pickle", zip(&[("x/y", b"", false)]), "without a data.pkl"),
        forged("nothing in it", zip(&[]), "without a data.pkl"),
        forged("two tails", [good.clone(), zip(&[data])].concat(), "two end records that disagree"),
        forged("another byte order", zip(&[data, ("x/byteorder", b"middle", false)]), "middle"),
        forged("no file", Vec::new(), "empty"),
        forged("a legacy file", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "1.6"),
        forged("a text", b"<html>404</html>".to_vec(), "not a zip file"),
    ];
    let wide = |start: u64, entries: u64| wide_end(&good, start, entries);
    all.push(forged("zip64: entries", wide(0, u64::MAX), "entries"));
    all.push(forged("zip64: a directory elsewhere", wide(u64::MAX - 8, 2), "outside the file"));
    let locator = bent(wide(0, 2), b"PK\x06\x07", 0, 8, &[0xff; 8]);
    all.push(forged("zip64: a locator to nowhere", locator, "locator"));
    for tenth in 1..10 {
        let cut = good[..good.len() * tenth / 10].to_vec();
        all.push(forged(&format!("cut at {tenth} tenths"), cut, "cut short"));
    }
    all
}

/// The same file with its end written wide, as zip64 does.
fn wide_end(file: &[u8], start: u64, entries: u64) -> Vec<u8> {
    let (body, end) = file.split_at(file.len() - 22);
    let record = (body.len() as u64).to_le_bytes();
    let size = u64::from(end[12]) | u64::from(end[13]) << 8;
    let mut wide = [body, b"PK\x06\x06", &44u64.to_le_bytes(), &[0; 12]].concat();
    for number in [entries, entries, size, start] {
        wide.extend(number.to_le_bytes());
    }
    wide.extend([&b"PK\x06\x07\0\0\0\0"[..], &record, &[1, 0, 0, 0]].concat());
    wide.extend([&b"PK\x05\x06\0\0\0\0"[..], &[0xff; 12], &[0, 0]].concat());
    wide
}

/// Pickles that are none, or announce what is not there.
pub(crate) fn bytes() -> Vec<Forged> {
    let pickles: &[(&str, &[u8], &str)] = &[
        ("nothing", b"", "no STOP"),
        ("no end", b"\x80\x02N", "no STOP"),
        ("an empty stack", b"\x80\x02.", "none is on the stack"),
        ("protocol 200", b"\x80\xc8N.", "protocol 200"),
        ("an unknown opcode", b"\xf7N.", "opcode 0xf7"),
        ("LONG4 of 2 GiB", b"\x8b\xff\xff\xff\x7f.", "cut short"),
        ("LONG4 of less than nothing", b"\x8b\xff\xff\xff\xff.", "cut short"),
        ("BINBYTES8 of everything", b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "cut short"),
        ("BINBYTES8 of 1 TiB", b"\x8e\0\0\0\0\0\x01\0\0.", "cut short"),
        ("BYTEARRAY8 of 1 EiB", b"\x96\0\0\0\0\0\0\0\x10.", "cut short"),
        ("BINUNICODE8", b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "cut short"),
        ("BINUNICODE of 4 GiB", b"X\xff\xff\xff\xffabc.", "cut short"),
        ("a FRAME past the end", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "None where"),
        ("a FRAME cut short", b"\x80\x04\x95\xff\xff", "cut short"),
        ("a buffer kept elsewhere", b"\x80\x05\x97.", "outside the file"),
        ("a memo of 4 billion", b"Nr\xff\xff\xff\xff.", "memo number"),
        ("a memo number in text", b"Np99999999999999999999\n.", "a memo number"),
        ("nothing remembered", b"j\x07\0\0\0.", "nothing is kept"),
        ("BUILD of a number", b"K\x01}b.", "no object"),
        ("BUILD twice", b"cx\nY\n)\x81}b}b.", "x.Y"),
        ("APPEND to a dict", b"}Na.", "List expected"),
        ("a key without a value", b"}(Nu.", "no value"),
        ("below the mark", b"N(0(0a.", "nothing on the stack"),
        ("a number of a million digits", b"L1", "cut short"),
        ("a list that holds itself", b"]q\0h\0a.", "a list where"),
        ("PERSID", b"P../../etc/passwd\n.", "where a checkpoint"),
    ];
    let mut all: Vec<Forged> =
        pickles.iter().map(|(what, pickle, word)| forged(what, checkpoint(pickle), word)).collect();
    let digits = [&b"L"[..], &b"9".repeat(1_000_000), b"L\n."].concat();
    all.push(forged("a million digits", checkpoint(&digits), "128 bits"));
    all
}

/// Files that ask for memory or time without end.
pub(crate) fn bombs() -> Vec<Forged> {
    const MANY: usize = 3 << 20;
    let one = |what: &str, head: &[u8], again: &[u8], word: &str| {
        forged(what, packed(&[head, &again.repeat(MANY), b"."].concat()), word)
    };
    let mut all = vec![
        forged("a zip bomb", packed(&vec![0; 100 << 20]), "far larger"),
        one("lists", b"", b"]", "raise the limit"),
        one("lists thrown away", b"", b"]0", "raise the limit"),
        one("marks", b"", b"(", "more marks"),
        one("copies on the stack", b"N", b"2", "raise the limit"),
        one("objects", b"", b"(No0", "raise the limit"),
        one("texts that are rewritten", b"", b"V\xff\n0", "raise the limit"),
        one("items of one list", b"]", b"(NNNNe", "raise the limit"),
        one("lines without end", b"", b"S", "cut short"),
    ];
    // Each list holds the one before it ten times: a billion at the ninth.
    let laughs = (1..30u8).fold(b"]q\0".to_vec(), |mut pickle, n| {
        pickle.extend(b"](");
        pickle.extend([b'h', n - 1].repeat(10));
        pickle.extend([b'e', b'q', n]);
        pickle
    });
    let deep = [b"]".repeat(1 << 20), b"a".repeat((1 << 20) - 1)].concat();
    let memo = (0..1u32 << 20).flat_map(|n| [&b"r"[..], &n.to_le_bytes()].concat());
    let memo: Vec<u8> = b"N".iter().copied().chain(memo).collect();
    for (what, pickle, word) in [
        ("billion laughs", laughs, "a list where"),
        ("a million deep", deep, "a list where"),
        ("a memo of a million", memo, "None where"),
    ] {
        all.push(forged(what, packed(&[&pickle[..], b"."].concat()), word));
    }
    all
}
