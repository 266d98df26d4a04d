//! What is seen, and what is said below it.

use super::*;

fn preview(dims: [u32; 3], voxels: &[u64]) -> Preview {
    let folder = std::env::temp_dir();
    let grid = VoxelGrid::new(dims, [0.2; 3], [-40.0, 0.0, 1.0]).unwrap();
    let mut preview = Preview::create(&folder.join("preview.png"), &grid).unwrap();
    voxels.iter().for_each(|voxel| preview.see(*voxel));
    preview
}

fn bright(preview: &Preview) -> usize {
    // The scale ends in a column of it.
    let yellow = shade(1.0);
    preview.draw().pixels().filter(|pixel| *pixel == yellow).count().saturating_sub(LETTER)
}

#[test]
fn one_voxel_is_seen_in_any_grid() {
    for dims in [[1, 1, 1], [10, 10, 10], [512, 512, 512], [1, 512, 512], [2000, 3, 3]] {
        let last = dims.iter().map(|extent| u64::from(*extent)).product::<u64>() - 1;
        for voxel in [0, last] {
            let seen = bright(&preview(dims, &[voxel]));
            // From three sides, at a corner: at least a quarter of a dot of each.
            assert!(seen >= 3 * 9, "{dims:?}: {seen} pixels");
        }
    }
    assert_eq!(bright(&preview([64, 64, 64], &[])), 0);
}

#[test]
fn sides_are_told_with_their_range() {
    // Two voxels above each other, and one beside them.
    let preview = preview([4, 4, 4], &[0, 16, 1]);
    let ranges: Vec<String> = [&preview.top, &preview.front, &preview.side]
        .map(|counts| Panel::new(counts, 4, 4, 4).range())
        .to_vec();
    assert_eq!(ranges, ["1-2", "1", "1-2"]);
    assert_eq!(Panel::new(&[0; 16], 4, 4, 4).range(), "empty");
}

#[test]
fn numbers_are_as_short_as_they_can_be() {
    let short = |number: f32| super::short(f64::from(number));
    assert_eq!(
        [short(-51.2), short(0.0), short(1e6), short(0.1), short(-123_456.7)],
        ["-51.2", "0", "1000000", "0.1", "-123457"]
    );
}

/// A LiDAR's grid, 10 voxels high and 352 wide, is seen from the front as more than a line.
#[test]
fn a_flat_grid_is_no_strip() {
    let counts = vec![1; 10 * 352];
    let front = Panel::new(&counts, 352, 10, 352);
    assert!(front.height * 4 >= front.width, "{} x {}", front.width, front.height);
    assert!(
        front.stretched.is_some_and(|times| (times - 8.8).abs() < 0.1),
        "{:?}",
        front.stretched
    );
    let counts = vec![1; 352 * 400];
    let top = Panel::new(&counts, 352, 400, 400);
    assert_eq!(top.stretched, None, "to scale");
    let tall = Panel::new(&[1; 2000 * 3], 3, 2000, 2000);
    assert!(tall.width * 4 >= tall.height);
}
