use proptest::prelude::*;

use super::*;

/// The mask as pixels, column by column.
fn pixels(mask: &PixelRuns) -> Vec<bool> {
    let mut all = vec![false; (mask.size.0 * mask.size.1) as usize];
    mask.runs.iter().for_each(|&(from, to)| all[from as usize..to as usize].fill(true));
    all
}

/// A polygon drawn the long way: every step of every edge on the fine grid.
fn walked(size: (u32, u32), points: &[f64]) -> Vec<bool> {
    let (rows, columns) = (i64::from(size.0), i64::from(size.1));
    let corner = |at: usize| {
        let at = at % (points.len() / 2);
        [0, 1].map(|axis| i64::from((5.0 * points[2 * at + axis] + 0.5) as i32))
    };
    let mut walk: Vec<(i64, i64)> = Vec::new();
    for edge in 0..points.len() / 2 {
        let ([mut x0, mut y0], [mut x1, mut y1]) = (corner(edge), corner(edge + 1));
        let (dx, dy) = ((x1 - x0).abs(), (y1 - y0).abs());
        let flip = (dx >= dy && x0 > x1) || (dx < dy && y0 > y1);
        if flip {
            (x0, y0, x1, y1) = (x1, y1, x0, y0);
        }
        let mut part: Vec<(i64, i64)> = (0..=dx.max(dy))
            .map(|t| {
                let along = |from: i64, to: i64, length: i64| {
                    (from as f64 + (to - from) as f64 / length as f64 * t as f64 + 0.5) as i64
                };
                if dx >= dy { (t + x0, along(y0, y1, dx)) } else { (along(x0, x1, dy), t + y0) }
            })
            .collect();
        if flip {
            part.reverse();
        }
        walk.extend(part);
    }
    let mut all = vec![false; (rows * columns) as usize];
    for pair in walk.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let x = (x0.min(x1) as f64 + 0.5) / 5.0 - 0.5;
        if x0 == x1 || x.floor() != x || x < 0.0 || x > (columns - 1) as f64 {
            continue;
        }
        let y = ((y0.min(y1) as f64 + 0.5) / 5.0 - 0.5).clamp(0.0, rows as f64).ceil() as i64;
        let place = (x as i64 * rows + y) as usize;
        all[place..].iter_mut().for_each(|pixel| *pixel = !*pixel);
    }
    all
}

fn bits(rows: u32, columns: u32) -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), (rows * columns) as usize)
}

fn mask(size: (u32, u32), pixels: &[bool]) -> PixelRuns {
    let runs = pixels.iter().enumerate().filter(|(_, inside)| **inside);
    PixelRuns::from_ordered(size, runs.map(|(at, _)| (at as u32, at as u32 + 1)))
}

proptest! {
    #[test]
    fn a_polygon_covers_what_walking_its_edges_covers(
        points in proptest::collection::vec(-8.0_f64..48.0, 6..24),
        whole in any::<bool>(),
        size in (1_u32..40, 1_u32..40),
    ) {
        let points: Vec<f64> =
            points.iter().map(|&p| if whole { p.round() } else { p }).collect();
        let points = &points[..points.len() / 2 * 2];
        prop_assert_eq!(pixels(&PixelRuns::from_polygon(size, points)), walked(size, points));
    }

    #[test]
    fn text_and_back_is_the_same_mask(
        (size, pixels) in (1_u32..30, 1_u32..30)
            .prop_flat_map(|(h, w)| (Just((h, w)), bits(h, w)))
    ) {
        let mask = mask(size, &pixels);
        prop_assert_eq!(PixelRuns::from_text(size, mask.to_text().as_bytes()), Ok(mask));
    }

    #[test]
    fn overlap_is_that_of_the_pixels(a in bits(9, 11), b in bits(9, 11), keep in 0_usize..9) {
        // Some masks with few pixels, so that boxes do not always meet.
        let thin = |pixels: &[bool], keep: usize| -> Vec<bool> {
            pixels.iter().enumerate().map(|(at, &p)| p && at % 9 <= keep).collect()
        };
        let (a, b) = (thin(&a, keep), thin(&b, 8));
        let (one, two) = (mask((9, 11), &a), mask((9, 11), &b));
        let count = |both: fn(bool, bool) -> bool| {
            a.iter().zip(&b).filter(|(a, b)| both(**a, **b)).count() as f64
        };
        let common = count(|a, b| a && b);
        let share = |all: f64| if common > 0.0 { common / all } else { 0.0 };
        prop_assert_eq!(one.overlap(&two, false), share(count(|a, b| a || b)));
        prop_assert_eq!(one.overlap(&two, true), share(count(|a, _| a)));
        prop_assert_eq!(PixelRuns::union((9, 11), &[one, two]).area() as f64, count(|a, b| a || b));
    }

    #[test]
    fn any_text_is_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..40)) {
        drop(PixelRuns::from_text((20, 20), &text));
    }
}

#[test]
fn counts_must_fit_into_the_image() {
    assert_eq!(PixelRuns::from_counts((2, 2), [1, 2, 1]).unwrap().area(), 2);
    assert_eq!(PixelRuns::from_counts((2, 2), [1, 4]), Err(CountsError::Count));
    assert_eq!(PixelRuns::from_counts((0, 2), []), Err(CountsError::Size));
    assert_eq!(PixelRuns::from_counts((1 << 31, 4), []), Err(CountsError::Size));
}
