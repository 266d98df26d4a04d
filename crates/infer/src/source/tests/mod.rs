//! Sources on files that are made here, whole and broken.

mod order;

use std::io::Cursor;
use std::path::Path;
use std::time::Instant;

use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, RgbImage};

use super::*;
use crate::error::InferError;

/// Frames and bad frames until the end; other errors are the last thing.
fn drain(source: &mut dyn Source) -> (Vec<Frame>, usize, Option<InferError>) {
    let (mut frames, mut skipped) = (Vec::new(), 0);
    while let Some(next) = source.next_frame() {
        match next {
            Ok(frame) => frames.push(frame),
            Err(InferError::Frame { .. }) => skipped += 1,
            Err(error) => return (frames, skipped, Some(error)),
        }
        assert!(frames.len() + skipped < 100_000, "it does not end");
    }
    (frames, skipped, None)
}

fn plain() -> SourceOptions {
    SourceOptions { ahead: 0, ..SourceOptions::default() }
}

fn spec(kind: &str, path: &Path) -> String {
    format!("{kind}={}", path.display())
}

/// Whether a programme is there; where it must be, its absence is a failure.
fn have(program: &str, tag: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    assert!(found || !required.split(',').any(|r| r == tag), "{program} is required and missing");
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn pictures() -> [(&'static str, Vec<u8>); 6] {
    let rgb: DynamicImage = RgbImage::from_fn(20, 10, |x, y| [x as u8, y as u8, 9].into()).into();
    let grey: DynamicImage = GrayImage::from_fn(20, 10, |x, _| [x as u8 * 9].into()).into();
    let heat = ImageBuffer::from_fn(20, 10, |x, y| Luma([(x * 1000 + y) as u16]));
    let heat = DynamicImage::ImageLuma16(heat);
    [
        ("a2.png", encoded(&rgb, ImageFormat::Png)),
        ("a10.JPG", encoded(&rgb, ImageFormat::Jpeg)),
        ("a1.bmp", encoded(&rgb, ImageFormat::Bmp)),
        ("b.tiff", encoded(&heat, ImageFormat::Tiff)),
        ("c.png", encoded(&heat, ImageFormat::Png)),
        ("d.jpeg", encoded(&grey, ImageFormat::Jpeg)),
    ]
}

#[test]
fn a_directory_is_read_in_order_with_its_depths() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in pictures() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("notes.txt"), "no picture").unwrap();
    let mut source = open(&spec("image_dir", folder.path()), &SourceOptions::default()).unwrap();
    assert_eq!((source.info().kind, source.info().frames), ("image_dir", Some(6)));
    let (frames, skipped, error) = drain(source.as_mut());
    assert!(error.is_none() && skipped == 0);
    let names: Vec<&str> = frames.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["a1.bmp", "a2.png", "a10.JPG", "b.tiff", "c.png", "d.jpeg"]);
    assert!(frames.iter().all(|f| (f.width, f.height) == (20, 10)));
    assert!(matches!(&frames[1].pixels, Pixels::Rgb8(p) if p[3..6] == [1, 0, 9]));
    assert!(matches!(&frames[3].pixels, Pixels::Grey16(p) if p[21] == 1001));
    assert!(matches!(&frames[4].pixels, Pixels::Grey16(p) if p[21] == 1001));
    assert!(matches!(&frames[5].pixels, Pixels::Grey8(_)));
    assert_eq!(frames[3].timestamp, Duration::from_millis(100));
}

#[test]
fn broken_pictures_are_skipped_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("0.png"), b"").unwrap();
    std::fs::create_dir(folder.path().join("1.png")).unwrap();
    // A pipe that nobody writes to must not be waited for.
    let pipe = std::process::Command::new("mkfifo").arg(folder.path().join("2.png")).status();
    let pipe = usize::from(pipe.is_ok_and(|status| status.success()));
    for (i, (name, bytes)) in pictures().into_iter().enumerate() {
        std::fs::write(folder.path().join(format!("{i}half-{name}")), &bytes[..bytes.len() / 2])
            .unwrap();
        std::fs::write(folder.path().join(format!("{i}whole-{name}")), bytes).unwrap();
    }
    let mut source = open(&spec("image_dir", folder.path()), &plain()).unwrap();
    let (frames, skipped, error) = drain(source.as_mut());
    assert!(error.is_none());
    assert_eq!((frames.len(), skipped), (6, 8 + pipe));
}

#[test]
fn mutated_pictures_never_panic() {
    for (name, bytes) in pictures() {
        mutations(&bytes, 300, |broken| drop(decode_image(broken)));
        assert!(decode_image(&bytes).is_ok(), "{name}");
    }
}

#[test]
fn a_picture_that_unpacks_to_gigabytes_is_refused() {
    let mut png = encoded(&GrayImage::new(8, 8).into(), ImageFormat::Png);
    for (width, height) in [(60_000_u32, 60_000_u32), (100_000, 1)] {
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        assert!(decode_image(&png).is_err());
    }
    // A BMP says its size without a checksum.
    let mut bmp = encoded(&RgbImage::new(8, 8).into(), ImageFormat::Bmp);
    bmp[18..22].copy_from_slice(&16_000_u32.to_le_bytes());
    bmp[22..26].copy_from_slice(&16_000_u32.to_le_bytes());
    assert!(decode_image(&bmp).is_err());
}

/// Flips, cuts and overwrites, the same ones on every run.
fn mutations(bytes: &[u8], rounds: u64, mut run: impl FnMut(&[u8])) {
    let mut state = 42_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for _ in 0..rounds {
        let mut broken = bytes.to_vec();
        for _ in 0..=random(4) {
            let at = random(broken.len());
            match random(4) {
                0 => broken[at] ^= 1 << random(8),
                1 => broken[at] = [0, 1, 127, 255][random(4)],
                2 => {
                    let end = (at + 4).min(broken.len());
                    broken[at..end].fill([0, 255][random(2)]);
                }
                _ => broken.truncate(at.max(1)),
            }
        }
        run(&broken);
    }
}

fn clip() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clip.mp4")).unwrap()
}

fn brightness(frame: &Frame) -> u64 {
    match &frame.pixels {
        Pixels::Rgb8(bytes) => {
            bytes.iter().map(|&b| u64::from(b)).sum::<u64>() / bytes.len() as u64
        }
        other => panic!("{other:?}"),
    }
}

fn is_the_clip(frames: &[Frame]) {
    assert_eq!(frames.len(), 24);
    for (i, frame) in frames.iter().enumerate() {
        assert_eq!((frame.width, frame.height), (96, 64));
        assert_eq!(frame.timestamp, Duration::from_millis(40 * i as u64));
    }
    let light: Vec<u64> = frames.iter().map(brightness).collect();
    assert!(light.is_sorted() && light[23] > light[0] + 150, "out of order: {light:?}");
}

#[test]
fn a_film_is_decoded_in_the_order_in_which_it_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film");
    std::fs::write(&path, clip()).unwrap();
    for options in [plain(), SourceOptions::default()] {
        let mut source = open(path.to_str().unwrap(), &options).unwrap();
        assert_eq!((source.info().kind, source.info().frames), ("video", Some(24)));
        assert!((source.info().rate.unwrap() - 25.0).abs() < 0.01);
        let (frames, skipped, error) = drain(source.as_mut());
        assert!(error.is_none() && skipped == 0, "{skipped} {error:?}");
        is_the_clip(&frames);
    }
}

#[test]
fn broken_films_are_skipped_in_part_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mp4");
    let whole = clip();
    // A sample whose bytes are gone costs that picture or those that need it, not the film.
    std::fs::write(&path, &whole[..whole.len() - 200]).unwrap();
    match open(&spec("video", &path), &plain()) {
        Ok(mut source) => {
            let (frames, skipped, _) = drain(source.as_mut());
            assert!(skipped > 0 && !frames.is_empty(), "{} {skipped}", frames.len());
        }
        Err(error) => assert!(error.to_string().contains("cut off"), "{error}"),
    }
    mutations(&whole, 150, |broken| {
        if let Ok(mp4::Film::H264(_)) = mp4::read(&mut Cursor::new(broken)) {
            std::fs::write(&path, broken).unwrap();
            if let Ok(mut source) = open(&spec("video", &path), &plain()) {
                drain(source.as_mut());
            }
        }
    });
}

#[test]
fn lying_tables_of_a_film_are_errors() {
    let whole = clip();
    let mut film = whole.clone();
    let at = film.windows(4).position(|w| w == b"stsz").unwrap();
    // Four billion samples of one byte each, in a file of a few kilobytes.
    film[at + 8..at + 12].copy_from_slice(&1_u32.to_be_bytes());
    film[at + 12..at + 16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(mp4::read(&mut Cursor::new(&film)).is_err());
    let mut film = whole;
    film[at + 12..at + 16].copy_from_slice(&1000_u32.to_be_bytes());
    assert!(mp4::read(&mut Cursor::new(&film)).is_err());
}

#[test]
fn films_that_are_turned_or_rare_are_left_to_others() {
    let whole = clip();
    let place = |kind: &[u8]| whole.windows(4).position(|w| w == kind).unwrap();
    let mut turned = whole.clone();
    let at = place(b"tkhd") + 4 + 40;
    turned[at..at + 8].copy_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0]);
    let mut rare = whole.clone();
    rare[place(b"avcC") + 5] = 110;
    for film in [turned, rare] {
        assert!(matches!(mp4::read(&mut Cursor::new(&film)), Ok(mp4::Film::Other(_))));
    }
}

#[test]
fn what_is_missing_is_said_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        spec("image_dir", folder.path()),
        spec("image_dir", &folder.path().join("no")),
        spec("video", &folder.path().join("no.mp4")),
        "camera=4711".to_owned(),
        "gst='a".to_owned(),
        "gst=' '".to_owned(),
    ] {
        let error = open(&text, &plain()).err().unwrap();
        assert!(!error.to_string().is_empty(), "{text}");
    }
}

/// A picture that is missing is a bad frame; a folder that is gone is not so many of them.
#[test]
fn a_source_that_vanishes_is_told_from_bad_frames() {
    let folder = tempfile::tempdir().unwrap();
    let picture = |n: u32| folder.path().join(format!("{n}.png"));
    for n in 0..6 {
        image::GrayImage::new(4, 4).save(picture(n)).unwrap();
    }
    let mut source = open(&spec("image_dir", folder.path()), &plain()).unwrap();
    assert!(source.next_frame().unwrap().is_ok());
    std::fs::remove_file(picture(1)).unwrap();
    assert!(matches!(source.next_frame(), Some(Err(InferError::Frame { .. }))));
    assert!(source.next_frame().unwrap().is_ok());
    (3..6).for_each(|n| std::fs::remove_file(picture(n)).unwrap());
    let gone = source.next_frame().unwrap().unwrap_err();
    assert!(gone.to_string().contains("vanished: 3 of its 6 pictures"), "{gone}");
    assert!(source.next_frame().is_none());

    let film = folder.path().join("clip.mp4");
    std::fs::write(&film, clip()).unwrap();
    let mut source = open(&spec("video", &film), &plain()).unwrap();
    assert!(source.next_frame().unwrap().is_ok());
    std::fs::write(&film, &clip()[..100]).unwrap();
    let (_, skipped, error) = drain(source.as_mut());
    assert_eq!(skipped, 0);
    assert!(error.unwrap().to_string().contains("was cut"));
}

#[test]
fn no_error_shows_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("token=sesame").display().to_string();
    for text in [
        "https://me:sesame@host/a.mp4".to_owned(),
        "http://host/a.mp4?token=sesame".to_owned(),
        "video=http://host/a.mp4?key=sesame".to_owned(),
        "gst='rtspsrc location=rtsp://me:sesame@host".to_owned(),
        "synthetic:password=sesame".to_owned(),
        format!("image_dir={missing}"),
    ] {
        let error = open(&text, &plain()).err().unwrap().to_string();
        assert!(!error.contains("sesame") && error.contains("***"), "{error}");
    }
}

fn ffmpeg(arguments: &[&str], output: &Path) {
    let made = std::process::Command::new("ffmpeg")
        .args(["-hide_banner", "-loglevel", "error", "-y"])
        .args(arguments)
        .arg(output)
        .status();
    assert!(made.unwrap().success());
}

#[test]
fn other_films_come_through_ffmpeg_with_their_times() {
    if !have("ffmpeg", "ffmpeg") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let film = folder.path().join("clip.mp4");
    std::fs::write(&film, clip()).unwrap();
    let avi = folder.path().join("clip.avi");
    ffmpeg(&["-i", film.to_str().unwrap(), "-c:v", "ffv1"], &avi);
    let mut source = open(&spec("video", &avi), &SourceOptions::default()).unwrap();
    let (frames, skipped, error) = drain(source.as_mut());
    assert!(error.is_none() && skipped == 0, "{skipped} {error:?}");
    is_the_clip(&frames);
    assert_eq!(source.info().rate, Some(25.0));

    let heat = folder.path().join("heat.mkv");
    let made = "gradients=s=32x16:r=10:d=0.5,format=gray16le";
    ffmpeg(&["-f", "lavfi", "-i", made, "-c:v", "ffv1"], &heat);
    let (frames, ..) = drain(open(&spec("video", &heat), &plain()).unwrap().as_mut());
    assert_eq!(frames.len(), 5);
    assert!(matches!(&frames[0].pixels, Pixels::Grey16(p) if p.len() == 512));
}

#[test]
fn ffmpeg_says_why_it_failed() {
    if !have("ffmpeg", "ffmpeg") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no-film.avi");
    std::fs::write(&path, "this is no film").unwrap();
    let mut source = open(&spec("video", &path), &SourceOptions::default()).unwrap();
    let (frames, _, error) = drain(source.as_mut());
    assert!(frames.is_empty());
    assert!(error.unwrap().to_string().contains("Invalid data"));
    assert!(source.next_frame().is_none());
}

#[test]
fn a_pipeline_gives_frames_with_sizes_and_times() {
    if !have("gst-launch-1.0", "gst") {
        return;
    }
    let text = "gst='videotestsrc num-buffers=5 ! video/x-raw,width=33,height=24,framerate=10/1'";
    let mut source = open(text, &SourceOptions::default()).unwrap();
    let (frames, skipped, error) = drain(source.as_mut());
    assert!(error.is_none() && skipped == 0, "{skipped} {error:?}");
    let times: Vec<u128> = frames.iter().map(|f| f.timestamp.as_millis()).collect();
    assert_eq!(times, [0, 100, 200, 300, 400]);
    assert!(frames.iter().all(|f| (f.width, f.height) == (33, 24)));
    assert!(matches!(&frames[0].pixels, Pixels::Rgb8(p) if p.len() == 33 * 24 * 3));

    let mut wrong = open("gst='nosuchelement'", &SourceOptions::default()).unwrap();
    let (_, _, error) = drain(wrong.as_mut());
    assert!(error.unwrap().to_string().contains("nosuchelement"));
}

#[test]
fn an_endless_child_is_ended_when_its_source_is_dropped() {
    if !have("gst-launch-1.0", "gst") {
        return;
    }
    let text = "gst='videotestsrc is-live=true ! video/x-raw,width=32,height=24,framerate=1/1'";
    let mut source = open(text, &SourceOptions::default()).unwrap();
    assert!(source.next_frame().unwrap().is_ok());
    let began = Instant::now();
    drop(source);
    assert!(began.elapsed() < Duration::from_secs(5));
}
