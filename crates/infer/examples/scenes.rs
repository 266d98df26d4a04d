//! Writes synthetic scenes and their truth to standard output, for the training script:
//!
//! ```text
//! scenes rgb|thermal training|unseen SEED FRAMES
//! ```
//!
//! For each frame: columns, rows and bytes a pixel (u32 each), the pixels, the number of
//! objects (u32), and for each the class, left, top, right and bottom (f32 each), all little
//! end first.

use std::io::{BufWriter, Write, stdout};

use plimsoll_infer::source::synthetic::{SceneKind, SceneOptions, Synthetic};
use plimsoll_infer::{Frame, Pixels, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, set, seed, frames] = arguments.as_slice() else {
        return Err("usage: scenes rgb|thermal training|unseen SEED FRAMES".into());
    };
    let kind = match kind.as_str() {
        "rgb" => SceneKind::Rgb,
        "thermal" => SceneKind::Thermal,
        other => return Err(format!("no camera is called {other:?}").into()),
    };
    let mut options = match set.as_str() {
        "training" => SceneOptions::training(kind, 0),
        "unseen" => SceneOptions::new(kind),
        other => return Err(format!("no set is called {other:?}").into()),
    };
    options.seed = seed.parse()?;
    options.frames = Some(frames.parse()?);
    let mut scenes = Synthetic::new(options);
    let mut out = BufWriter::new(stdout().lock());
    while let Some(frame) = scenes.next_frame() {
        write(&mut out, &frame?)?;
    }
    Ok(out.flush()?)
}

fn write(out: &mut impl Write, frame: &Frame) -> Result<(), Box<dyn std::error::Error>> {
    let (deep, bytes) = match &frame.pixels {
        Pixels::Rgb8(bytes) => (3_u32, bytes.clone()),
        Pixels::Grey16(values) => (2, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        _ => return Err("scenes have no such pixels".into()),
    };
    for number in [u32::try_from(frame.width)?, u32::try_from(frame.height)?, deep] {
        out.write_all(&number.to_le_bytes())?;
    }
    out.write_all(&bytes)?;
    let truth = frame.truth.as_deref().unwrap_or_default();
    out.write_all(&u32::try_from(truth.len())?.to_le_bytes())?;
    for object in truth {
        out.write_all(&(object.class as f32).to_le_bytes())?;
        for edge in object.bounds {
            out.write_all(&edge.to_le_bytes())?;
        }
    }
    Ok(())
}
