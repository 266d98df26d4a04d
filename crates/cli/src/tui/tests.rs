//! Frames without a terminal.

use std::time::Duration;

use jiff::tz::{Offset, TimeZone};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::draw::draw;
use super::filter::FilterKey;
use super::{KeyAction, LiveView, ViewSettings};
use crate::command::monitor::record::{
    MonitorCore, MonitorEngine, MonitorFan, MonitorGpu, MonitorMemory, MonitorProcess,
    MonitorRecord, MonitorRun, MonitorTimeLeft,
};

const GIB: u64 = 1 << 30;

fn process(pid: u32, command: &str, gpu_bytes: Option<u64>, resident: u64) -> MonitorProcess {
    MonitorProcess {
        pid,
        name: command.split(' ').next().map(String::from),
        command: Some(format!("/usr/bin/{command}")),
        user: Some("ada".to_string()),
        gpu: gpu_bytes.map(|_| 0),
        gpu_bytes,
        resident_bytes: Some(resident),
        cpu_percent: Some(7.0),
        ..MonitorProcess::default()
    }
}

/// A Jetson whose memory grows towards a limit.
fn orin() -> MonitorRecord {
    let engine = |mhz| MonitorEngine { off: false, percent: None, mhz: Some(mhz) };
    let core = |percent| MonitorCore { online: true, percent: Some(percent), mhz: Some(1510.0) };
    let mut record = MonitorRecord {
        time: Some("2026-11-15T09:30:00Z".to_string()),
        t: Some(12.0),
        how: "sampled".to_string(),
        unified: Some(true),
        memory: MonitorMemory {
            total_bytes: Some(8 * GIB),
            available_bytes: Some(2 * GIB),
            gpu_share_bytes: Some(3 * GIB),
            limit_bytes: Some(7 * GIB),
            ..MonitorMemory::default()
        },
        gpus: vec![MonitorGpu {
            unified: true,
            percent: Some(62.0),
            mhz: Some(612.0),
            ..MonitorGpu::default()
        }],
        time_left: Some(MonitorTimeLeft {
            memory: "system".to_string(),
            limit_bytes: Some(7 * GIB),
            seconds: 28.0,
            at_least_s: 24.0,
            at_most_s: Some(33.0),
            bytes_per_s: 4e7,
        }),
        engines: [("NVDEC".to_string(), engine(268.0)), ("VIC".to_string(), engine(115.0))].into(),
        fans: [("pwmfan".to_string(), MonitorFan { percent: Some(40.0), rpm: Some(2310.0) })]
            .into(),
        power_w: [("VDD_SOC".to_string(), Some(1.5))].into(),
        power_mode: Some("15W".to_string()),
        total_power_w: Some(5.3),
        processes: vec![
            process(7, "camera --device /dev/video0", None, 9 << 20),
            process(9, "detector --model yolo11n.engine", Some(GIB), 1 << 20),
        ],
        missing: vec!["not told by this machine: temperatures".to_string()],
        ..MonitorRecord::default()
    };
    record.cpu.percent = Some(37.0);
    record.cpu.cores = vec![core(20.0), core(90.0), MonitorCore::default()];
    record
}

/// A server: two GPUs, one held to a limit by the guard, and a container.
fn server() -> MonitorRecord {
    let gpu = |used: u64, percent| MonitorGpu {
        name: Some("Pretend 80GB".to_string()),
        used_bytes: Some(used * GIB),
        total_bytes: Some(80 * GIB),
        percent: Some(percent),
        mhz: Some(1755.0),
        power_w: Some(412.0),
        power_limit_w: Some(700.0),
        temperature_c: Some(64.0),
        fan_percent: Some(30.0),
        throttled_by: Some(vec!["power cap".to_string()]),
        ..MonitorGpu::default()
    };
    let mut held = process(4711, "python3 train.py --batch 64", Some(6 * GIB), 3 * GIB);
    (held.guarded_bytes, held.limit_bytes) = (Some(6 * GIB), Some(8 * GIB));
    let mut other = process(90, "python3 serve.py", Some(78 * GIB), 12 * GIB);
    (other.gpu, other.user) = (Some(1), Some("bob".to_string()));
    other.container = Some("docker 3f2a1b7c9d10".to_string());
    let run = MonitorRun { pid: 4711, gpu: 0, used_bytes: 6 * GIB, limit_bytes: Some(8 * GIB) };
    let (unified, orin) = (Some(false), orin());
    MonitorRecord {
        unified,
        memory: MonitorMemory { gpu_share_bytes: None, limit_bytes: None, ..orin.memory.clone() },
        gpus: vec![gpu(8, 97.0), gpu(79, 12.0)],
        processes: vec![other, held],
        runs: vec![run],
        time_left: None,
        missing: Vec::new(),
        engines: [].into(),
        fans: [].into(),
        power_w: [].into(),
        power_mode: None,
        ..orin
    }
}

/// A machine without a GPU.
fn bare() -> MonitorRecord {
    let mut record = MonitorRecord { unified: None, gpus: Vec::new(), ..orin() };
    record.memory.gpu_share_bytes = None;
    record.processes.truncate(1);
    record.processes[0].resident_bytes = Some(5 * GIB);
    record.missing = vec!["no GPU found: plimsoll doctor".to_string()];
    record
}

fn buffer(view: &LiveView, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().buffer().clone()
}

fn frame(view: &LiveView, width: u16, height: u16) -> Vec<String> {
    let buffer = buffer(view, width, height);
    let cell = |x, y| buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()).to_string();
    (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect()).collect()
}

fn settings() -> ViewSettings {
    let zone = TimeZone::fixed(Offset::constant(1));
    ViewSettings { source: String::new(), interval: Duration::from_millis(500), colour: true, zone }
}

/// A minute of a record, its memory growing up to it.
fn view(record: &MonitorRecord) -> LiveView {
    let mut view = LiveView::new(settings());
    for n in 0..120u64 {
        let mut then = MonitorRecord { t: Some(n as f64 / 2.0), ..record.clone() };
        let more = |bytes: u64| bytes + (119 - n) * (16 << 20);
        then.memory.available_bytes = record.memory.available_bytes.map(more);
        view.take(then);
    }
    view
}

/// The frames of each machine at four sizes, as files to be read. `PLIMSOLL_WRITE_FRAMES=1` writes
/// them anew.
#[test]
fn frames_are_as_they_were_looked_at() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tui/frames");
    for (name, record) in [("orin", orin()), ("server", server()), ("bare", bare())] {
        for (width, height) in [(60, 24), (80, 24), (120, 40), (200, 60)] {
            let path = folder.join(format!("{name}-{width}x{height}.txt"));
            let lines = frame(&view(&record), width, height);
            let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
            let text = lines.join("\n") + "\n";
            if std::env::var_os("PLIMSOLL_WRITE_FRAMES").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let known = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(known == text, "{} is not what is drawn:\n{text}", path.display());
        }
    }
}

/// Who holds most, what is left below the limit, when it runs out, and what is missing.
#[test]
fn the_four_questions_are_answered_at_80_by_24() {
    let lines = frame(&view(&orin()), 80, 24);
    let text = lines.join("\n");
    for word in [
        "System        6.00 of   8.00 GiB  75 %",
        "of it GPU   3.00 of   8.00 GiB",
        "1.00 GiB below the limit of 7.00 GiB, system memory",
        "detector --model holds 1.00 GiB of GPU memory (pid 9, user ada)",
        "in 28 s (24 s to 33 s), about 10:30:28, growing 38.15 MiB/s",
        "limit 7.00 GiB ──",
        "+28 s (24 s to 33 s)",
        "═◆═",
        "GPU load, %",
        "GPU memory, GiB",
        "612 MHz",
        "board 5.3 W",
        "mode 15W",
        "10:30:00 +01",
        "Missing  not told by this machine: temperatures",
        "q quit",
    ] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    let row = |name: &str| lines.iter().position(|line| line.contains(name));
    assert!(row("detector --model") < row("camera --device"), "GPU memory comes first\n{text}");
    let none = frame(&view(&bare()), 80, 24).join("\n");
    assert!(none.contains("no GPU found: plimsoll doctor"), "{none}");
}

#[test]
fn a_narrow_view_says_where_something_is_left_out() {
    let lines = frame(&view(&orin()), 60, 24);
    let line = |start: &str| {
        let found = lines.iter().find(|line| line.starts_with(start));
        found.map(|line| line.trim_end()).unwrap_or_default().to_string()
    };
    assert!(line("Runs out").ends_with("about 10:30:28, growing …"), "{lines:#?}");
    assert!(lines[23].trim_end().ends_with("? help"), "{lines:#?}");
    let wide = frame(&view(&orin()), 80, 24);
    assert!(wide[23].contains("+ - interval  ? help"), "{wide:#?}");
    let mut log = bare();
    log.how = "recorded".to_string();
    let mut view = view(&log);
    view.settings.source = "REPLAY of memory.jsonl".to_string();
    assert!(frame(&view, 60, 24)[0].starts_with("REPLAY of memory.jsonl"), "it is marked as one");
    view.warn("a word ".repeat(20));
    for width in [30, 60] {
        let lines = frame(&view, width, 24);
        let notice = lines.iter().find(|line| line.starts_with("warning: ")).unwrap();
        assert!(notice.trim_end().ends_with(" …"), "{notice}");
    }
}

#[test]
fn samples_that_are_too_far_apart_are_no_calm() {
    let said = |step: f64| {
        let mut view = LiveView::new(settings());
        for at in 0..4 {
            let (t, time_left) = (Some(step * f64::from(at)), None);
            view.take(MonitorRecord { t, time_left, ..orin() });
        }
        frame(&view, 80, 24).join("\n")
    };
    assert!(said(120.0).contains("a forecast needs samples at most 60 s apart"));
    assert!(said(30.0).contains("not foreseen: no steady growth"));
}

#[test]
fn discrete_gpus_come_first_and_runs_have_their_limit() {
    let lines = frame(&view(&server()), 120, 40);
    let text = lines.join("\n");
    for word in [
        "GPU0          8.00 of  80.00 GiB",
        "run 4711      6.00 of   8.00 GiB  75 %",
        "held by plimsoll run",
        "critical",
        "6.00/8.00",
        "docker 3f2a1b7c9d10",
        "bob",
        "412/700 W",
        "GPU1 throttled by power cap",
        "GPU memory, %",
        "python3 train.py --batch 64",
    ] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    let row = |name: &str| lines.iter().position(|line| line.starts_with(name));
    assert!(row("GPU0") < row("RAM") && row("GPU0").is_some(), "{text}");
    assert!(!text.contains("of it GPU"), "{text}");
}

#[test]
fn any_size_and_any_record_can_be_drawn() {
    let many = MonitorRecord { gpus: vec![MonitorGpu::default(); 20], ..server() };
    let mut cores = orin();
    cores.cpu.cores = vec![MonitorCore { online: true, percent: Some(50.0), mhz: None }; 512];
    let mut full = orin();
    full.memory.available_bytes = Some(0);
    let records = [orin(), server(), bare(), many, cores, full, MonitorRecord::default()];
    for (width, height) in [(1, 1), (10, 3), (20, 5), (40, 10), (60, 16), (80, 24), (300, 100)] {
        for record in &records {
            let mut view = view(record);
            frame(&view, width, height);
            view.grant(KeyAction::Help);
            frame(&view, width, height);
        }
    }
    frame(&LiveView::new(settings()), 80, 24);
}

#[test]
fn keys_change_the_view() {
    let mut view = view(&orin());
    view.grant(KeyAction::Faster);
    assert_eq!(view.interval(), Duration::from_millis(250));
    view.grant(KeyAction::Slower);
    view.grant(KeyAction::Slower);
    assert_eq!(view.interval(), Duration::from_secs(1));
    view.grant(KeyAction::Sort);
    let text = frame(&view, 80, 24).join("\n");
    let row = |words: &str| text.rfind(words);
    assert!(row("camera --") < row("detector --"), "resident memory comes first\n{text}");
    assert!(text.contains("▾RAM GiB"), "{text}");
    view.grant(KeyAction::Pause);
    let later =
        MonitorRecord { total_power_w: Some(99.0), alerts: vec!["full".to_string()], ..orin() };
    view.take(later);
    let text = frame(&view, 80, 24).join("\n");
    assert!(text.contains("PAUSED") && !text.contains("99.0 W"), "{text}");
    assert!(text.contains("alert: full"), "alerts are shown all the same\n{text}");
    view.grant(KeyAction::Zoom);
    assert_eq!(view.span, 600.0);
    view.grant(KeyAction::Help);
    let text = frame(&view, 80, 24).join("\n");
    assert!(text.contains("sort by GPU memory") && text.contains("missing: "), "{text}");
}

#[test]
fn processes_are_scrolled_and_filtered() {
    let mut record = orin();
    record.processes =
        (0..50).map(|pid| process(pid, "worker", None, u64::from(99 - pid))).collect();
    record.processes[44].user = Some("bob".to_string());
    let mut view = view(&record);
    let pids = |view: &LiveView| -> Vec<String> {
        let lines = frame(view, 80, 24);
        let table = lines.iter().skip_while(|line| !line.contains("command"));
        let rows = table.skip(1).take_while(|line| line.contains("worker"));
        rows.filter_map(|line| line.split_whitespace().next().map(String::from)).collect()
    };
    let shown = pids(&view).len();
    assert!(shown >= 4 && pids(&view)[0] == "0", "{:?}", pids(&view));
    view.grant(KeyAction::Scroll(3));
    assert_eq!(pids(&view)[0], "3");
    view.grant(KeyAction::Bottom);
    assert_eq!(pids(&view).last().map(String::as_str), Some("49"));
    view.grant(KeyAction::Scroll(-1));
    view.grant(KeyAction::Top);
    assert_eq!(pids(&view)[0], "0");
    view.grant(KeyAction::Filter(FilterKey::Begin));
    assert!(view.is_typing() && !view.quits_on_escape());
    "user:bob".chars().for_each(|c| view.grant(KeyAction::Filter(FilterKey::Letter(c))));
    assert_eq!(pids(&view), ["44"]);
    assert!(frame(&view, 80, 24).join("\n").contains("filter: user:bob_  1"));
    view.grant(KeyAction::Filter(FilterKey::Clear));
    assert_eq!(pids(&view).len(), shown);
}

#[test]
fn without_colours_everything_is_still_there() {
    let record = server();
    let mut plain = view(&record);
    plain.settings.colour = false;
    let (plain, coloured) = (buffer(&plain, 120, 40), buffer(&view(&record), 120, 40));
    let same = |(a, b): (&ratatui::buffer::Cell, &ratatui::buffer::Cell)| a.symbol() == b.symbol();
    assert!(plain.content.iter().zip(&coloured.content).all(same));
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(coloured.content.iter().any(|cell| cell.fg != Color::Reset));
}

#[cfg(target_os = "linux")]
const PANIC_VARIABLE: &str = "PLIMSOLL_TEST_PANIC_IN_VIEW";

/// Does something only when the test below runs it in a process of its own.
#[cfg(target_os = "linux")]
#[test]
fn panics_in_the_view_when_told_to() {
    if std::env::var_os(PANIC_VARIABLE).is_some() {
        crate::output::report_panics(false);
        let mut screen = super::Screen::take().unwrap();
        let view = view(&orin());
        screen.show(&view).unwrap();
        screen.next_action(Duration::from_secs(60), &view).unwrap();
        panic!("in the middle of a frame");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_panic_gives_the_terminal_back_and_says_its_line_there() {
    let terminal = super::terminal::Terminal::open(80, 24).unwrap();
    let before = terminal.modes().unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", "tui::tests::panics_in_the_view_when_told_to"])
        .env(PANIC_VARIABLE, "1");
    let status = terminal.run(command, "q quit", |_, terminal| terminal.press("s")).unwrap();
    assert_eq!(status.code(), Some(3));
    assert_eq!(terminal.modes().unwrap(), before);
    assert!(terminal.is_given_back(), "{:?}", terminal.written());
    let written = terminal.written();
    let after = written.rsplit("\x1b[?1049l").next().unwrap();
    assert!(after.contains("this is a bug in plimsoll"), "{after:?}");
}

#[test]
fn names_of_strangers_steer_no_terminal() {
    const HOSTILE: &str = "a\u{202e}b\x1b[2J\u{9b}31m\u{2066}";
    let mut record = orin();
    record.time = Some(HOSTILE.to_string());
    record.power_mode = Some(HOSTILE.to_string());
    record.temperatures_c = [(HOSTILE.to_string(), Some(50.0))].into();
    record.processes[0].command = Some(HOSTILE.to_string());
    record.processes[0].user = Some(HOSTILE.to_string());
    record.processes[1].container = Some(HOSTILE.to_string());
    record.missing = vec![HOSTILE.to_string()];
    let mut view = view(&record);
    view.warn(HOSTILE.to_string());
    let text = frame(&view, 100, 30).join("\n");
    assert!(!text.contains(|c| plimsoll::text::is_steering(c) && c != '\n'), "{text:?}");
    assert!(text.contains("mode "), "{text}");
}
