//! What is read of a batch, and what is refused.

use super::*;
use std::fs;

#[test]
fn of_a_stack_only_the_clouds_that_are_wanted_are_read() {
    let header = "{'descr': '>f8', 'fortran_order': False, 'shape': (4, 1, 3)}";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend((0..12).flat_map(|n| f64::from(n).to_be_bytes()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    fs::write(&path, file).unwrap();
    let batch = Batch::open(&path).unwrap();
    let clouds = |range| -> Vec<f32> {
        let clouds = batch.load(range, true).unwrap();
        clouds.iter().flat_map(|cloud| cloud.floats().unwrap().into_owned()).collect()
    };
    assert_eq!(clouds(1..3), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let held = || batch.last.lock().unwrap().as_ref().unwrap().range.clone();
    assert_eq!(held(), 1..3);
    assert_eq!(clouds(2..3), [6.0, 7.0, 8.0]);
    assert_eq!(held(), 1..3, "as they were there");
    assert_eq!(clouds(2..4), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert_eq!(held(), 2..4);
}

#[test]
fn more_points_than_a_file_can_have_are_named_where_they_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ply");
    let head = "ply\nformat ascii 1.0\nelement vertex 4000000000000\nproperty float x\n\
                property float y\nproperty float z\nend_header\n1 2 3\n";
    fs::write(&path, head).unwrap();
    let batch = Batch::open(&path).unwrap();
    let error = batch.load(0..1, false).unwrap_err().to_string();
    assert!(error.contains("line 8: it ends before its last vertex"), "{error}");
}

#[test]
fn the_bytes_of_a_file_give_what_the_file_gives() {
    let head = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\n\
                property float z\nproperty float i\nend_header\n1 2 3 9\n4 5 6 8\n";
    let read = |features| clouds_from(Path::new("bucket/a.PLY"), head.as_bytes(), features);
    assert_eq!(read(true).unwrap(), (1, vec![vec![1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 8.0]]));
    assert_eq!(read(false).unwrap(), (0, vec![vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]));
    let refused = |name: &str, bytes: &[u8]| {
        clouds_from(Path::new(name), bytes, true).unwrap_err().to_string()
    };
    assert!(refused("a.ply", &head.as_bytes()[..120]).contains("a.ply, "));
    assert!(refused("a.las", b"").contains("files that end in .npy"));
}
