//! Frames without a terminal.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::draw;
use super::{KeyAction, LiveView};
use crate::command::monitor::record::{
    MonitorGpu, MonitorMemory, MonitorProcess, MonitorRecord, MonitorTimeLeft,
};

fn orin() -> MonitorRecord {
    let process = |pid, name: &str, gpu_bytes, resident_bytes| MonitorProcess {
        pid,
        name: Some(name.to_string()),
        gpu_bytes,
        resident_bytes,
        ..MonitorProcess::default()
    };
    MonitorRecord {
        time: Some("2026-11-15T09:30:00Z".to_string()),
        t: Some(12.0),
        unified: Some(true),
        memory: MonitorMemory {
            total_bytes: Some(8 << 30),
            available_bytes: Some(2 << 30),
            gpu_share_bytes: Some(3 << 30),
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
            seconds: 28.0,
            at_least_s: 24.0,
            at_most_s: Some(33.0),
            bytes_per_s: 4e7,
        }),
        total_power_w: Some(5.3),
        processes: vec![
            process(7, "camera", None, Some(9 << 20)),
            process(9, "detector", Some(1 << 30), Some(1 << 20)),
        ],
        ..MonitorRecord::default()
    }
}

fn frame(view: &LiveView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cell = |x, y| buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()).to_string();
    (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect()).collect()
}

fn view(record: &MonitorRecord) -> LiveView {
    let mut view = LiveView::new("test".to_string(), Duration::from_millis(500));
    (0..30).for_each(|n| view.take(&MonitorRecord { t: Some(f64::from(n)), ..record.clone() }));
    view
}

#[test]
fn everything_fits_on_80_by_24() {
    let frame = frame(&view(&orin()), 80, 24);
    let text = frame.join("\n");
    for word in [
        "System",
        "6.00 GiB /   8.00 GiB",
        "75 %",
        "medium",
        "of it GPU",
        "3.00 GiB",
        "Time left",
        "28 s",
        "24 s to 33 s",
        "GPU0 62 %",
        "612 MHz",
        "5.3 W",
        "detector",
        "camera",
        "q quit",
        "-29 s",
    ] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    let row = |name: &str| frame.iter().position(|line| line.contains(name));
    assert!(row("detector") < row("camera"), "GPU memory comes first");
}

#[test]
fn discrete_gpus_have_memory_of_their_own() {
    let gpu = |used| MonitorGpu {
        used_bytes: Some(used),
        total_bytes: Some(80 << 30),
        throttled_by: Some(vec!["power cap".to_string()]),
        ..MonitorGpu::default()
    };
    let record =
        MonitorRecord { unified: Some(false), gpus: vec![gpu(8 << 30), gpu(79 << 30)], ..orin() };
    let text = frame(&view(&record), 100, 30).join("\n");
    for word in ["RAM", "GPU0 VRAM", "GPU1 VRAM", "critical", "throttled by power cap"] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    assert_eq!(text.matches("GPU1 VRAM").count(), 2, "beside its bar and in the plot\n{text}");
    assert!(!text.contains("of it GPU"), "{text}");
}

#[test]
fn any_size_and_any_record_can_be_drawn() {
    for (width, height) in [(1, 1), (10, 3), (20, 5), (40, 10), (80, 24), (300, 100)] {
        frame(&view(&orin()), width, height);
        frame(&view(&MonitorRecord::default()), width, height);
        let mut help = view(&orin());
        help.grant(KeyAction::Help);
        frame(&help, width, height);
    }
    frame(&LiveView::new(String::new(), Duration::ZERO), 80, 24);
}

#[test]
fn keys_change_the_view() {
    let mut view = view(&orin());
    view.grant(KeyAction::Faster);
    assert_eq!(view.interval, Duration::from_millis(250));
    view.grant(KeyAction::Slower);
    view.grant(KeyAction::Slower);
    assert_eq!(view.interval, Duration::from_secs(1));
    view.grant(KeyAction::Sort);
    let text = frame(&view, 80, 24).join("\n");
    assert!(text.find("camera") < text.find("detector"), "resident memory comes first\n{text}");
    view.grant(KeyAction::Pause);
    view.take(&MonitorRecord { t: Some(99.0), alerts: vec!["full".to_string()], ..orin() });
    let text = frame(&view, 80, 24).join("\n");
    assert!(text.contains("paused") && !text.contains("99.0 s"), "{text}");
    assert!(text.contains("alert: full"), "alerts are shown all the same\n{text}");
    view.grant(KeyAction::Help);
    assert!(frame(&view, 80, 24).join("\n").contains("sort processes by"));
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
        screen.show(&view(&orin())).unwrap();
        screen.next_action(Duration::from_secs(60)).unwrap();
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
    record.processes[0].name = Some(HOSTILE.to_string());
    let mut view = view(&record);
    view.warn(HOSTILE.to_string());
    let text = frame(&view, 100, 30).join("\n");
    assert!(!text.contains(|c| plimsoll::text::is_steering(c) && c != '\n'), "{text:?}");
    assert!(text.contains("mode "), "{text}");
}
