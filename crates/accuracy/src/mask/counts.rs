//! COCO's run-length code: alternating counts of pixels outside and inside, as numbers or as text.

use super::{MOST_PIXELS, PixelRuns};

/// Why counts are not those of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountsError {
    /// The image is empty or has too many pixels.
    Size,
    /// The counts have more pixels than the image, or one is negative.
    Count,
    /// The text ends inside a number, or has a character that does not belong to the code.
    Text,
}

impl std::fmt::Display for CountsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CountsError::Size => "its image has no pixels, or more than 2,147,483,648",
            CountsError::Count => "its counts do not fit into its image",
            CountsError::Text => "its text is not COCO's code of counts",
        })
    }
}

impl PixelRuns {
    /// From counts, the first outside; `size` is rows and columns.
    ///
    /// # Errors
    /// [`CountsError`] where they are not those of a mask of that size.
    pub fn from_counts(
        size: (u32, u32),
        counts: impl IntoIterator<Item = u32>,
    ) -> Result<PixelRuns, CountsError> {
        let pixels = pixels(size)?;
        let (mut place, mut inside, mut runs) = (0_u64, false, Vec::new());
        for count in counts {
            let from = place;
            place += u64::from(count);
            if place > pixels {
                return Err(CountsError::Count);
            }
            if inside {
                runs.push((from as u32, place as u32));
            }
            inside = !inside;
        }
        Ok(PixelRuns::from_ordered(size, runs.into_iter()))
    }

    /// From the text of counts: each is the difference to the one before the last, in groups of
    /// five bits, the lowest first, each a printable character.
    ///
    /// # Errors
    /// [`CountsError`] where it is not the code of a mask of that size.
    pub fn from_text(size: (u32, u32), text: &[u8]) -> Result<PixelRuns, CountsError> {
        let mut counts: Vec<i64> = Vec::new();
        let (mut value, mut shift) = (0_i64, 0_u32);
        for &character in text {
            let group = character.checked_sub(48).filter(|group| *group < 64);
            let group = i64::from(group.ok_or(CountsError::Text)?);
            // A count has 32 bits: seven groups.
            if shift > 30 {
                return Err(CountsError::Text);
            }
            value |= (group & 0x1f) << shift;
            shift += 5;
            if group & 0x20 != 0 {
                continue;
            }
            if group & 0x10 != 0 {
                value |= -1 << shift;
            }
            if counts.len() > 2 {
                value += counts[counts.len() - 2];
            }
            counts.push(value);
            (value, shift) = (0, 0);
        }
        if shift > 0 {
            return Err(CountsError::Text);
        }
        let whole: Option<Vec<u32>> = counts.iter().map(|&n| u32::try_from(n).ok()).collect();
        PixelRuns::from_counts(size, whole.ok_or(CountsError::Count)?)
    }

    /// The text of its counts, which [`PixelRuns::from_text`] reads.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut counts = Vec::with_capacity(2 * self.runs.len() + 1);
        let mut place = 0;
        for &(from, to) in &self.runs {
            counts.extend([from - place, to - from]);
            place = to;
        }
        let pixels = self.size.0 * self.size.1;
        if pixels > place || counts.is_empty() {
            counts.push(pixels - place);
        }
        let mut text = String::new();
        for (at, &count) in counts.iter().enumerate() {
            let before = if at > 2 { counts[at - 2] } else { 0 };
            let mut value = i64::from(count) - i64::from(before);
            loop {
                let group = (value & 0x1f) as u8;
                value >>= 5;
                let more = if group & 0x10 != 0 { value != -1 } else { value != 0 };
                text.push(char::from(48 + group + if more { 0x20 } else { 0 }));
                if !more {
                    break;
                }
            }
        }
        text
    }
}

/// How many pixels an image of so many rows and columns has.
fn pixels((rows, columns): (u32, u32)) -> Result<u64, CountsError> {
    let pixels = u64::from(rows) * u64::from(columns);
    if pixels == 0 || pixels > MOST_PIXELS { Err(CountsError::Size) } else { Ok(pixels) }
}
