//! The calls of the header, as a program makes them: through pointers.
#![expect(unsafe_code, reason = "pointers, as C has them")]

use std::ffi::CStr;
use std::ptr;

use plimsoll_c::{
    PlimsollHardSpec, PlimsollStatus, plimsoll_cuda_pillars_create, plimsoll_cuda_pillars_destroy,
    plimsoll_cuda_scatter_create, plimsoll_cuda_scatter_destroy, plimsoll_hard_voxelize,
    plimsoll_last_error, plimsoll_scatter_points, plimsoll_voxels_to_points,
};

fn said() -> String {
    // SAFETY: the text lives until the next call of this thread that fails.
    unsafe { CStr::from_ptr(plimsoll_last_error()) }.to_string_lossy().into_owned()
}

fn spec(max_points: u32) -> PlimsollHardSpec {
    PlimsollHardSpec {
        voxel_size: [1.0, 1.0, 4.0],
        range: [0.0, 0.0, -3.0, 4.0, 3.0, 1.0],
        max_points,
        max_voxels: 9,
        order: 0,
        batch_index: 0,
    }
}

#[test]
fn scatters_and_back() {
    let features = [1.0f32, 10.0, 2.0, 20.0, 4.0, 5.0];
    let owners = [1i32, -1, 1];
    let mut values = [7.0f32; 4];
    for (rule, want) in [(0, [5.0, 15.0]), (1, [2.5, 7.5]), (2, [4.0, 10.0])] {
        // SAFETY: all lists are as long as is said.
        let status = unsafe {
            let (from, to) = (features.as_ptr(), values.as_mut_ptr());
            plimsoll_scatter_points(from, 2, owners.as_ptr(), 3, 2, rule, to)
        };
        assert_eq!(status, PlimsollStatus::Ok, "{}", said());
        assert_eq!(values, [0.0, 0.0, want[0], want[1]]);
    }
    let mut back = [7.0f32; 6];
    // SAFETY: as above.
    let status = unsafe {
        plimsoll_voxels_to_points(values.as_ptr(), 2, 2, owners.as_ptr(), 3, back.as_mut_ptr())
    };
    assert_eq!(status, PlimsollStatus::Ok);
    assert_eq!(back, [4.0, 10.0, 0.0, 0.0, 4.0, 10.0]);
    // SAFETY: nothing is written where arguments are wrong.
    let status = unsafe {
        plimsoll_scatter_points(features.as_ptr(), 2, owners.as_ptr(), 3, 2, 3, values.as_mut_ptr())
    };
    assert_eq!(status, PlimsollStatus::BadArgument);
    assert!(said().starts_with("rule"), "{}", said());
}

/// What is kept of one cloud for the next does not show.
#[test]
fn one_cloud_after_the_other() {
    let clouds = [
        vec![2.5f32, 1.25, 0.0, 2.75, 1.5, -1.0, 0.5, 0.5, 0.5],
        vec![0.5, 0.5, 0.5],
        vec![f32::NAN, 0.0, 0.0, 3.5, 2.5, 0.0, 2.5, 1.25, 0.0],
    ];
    for (round, max_points) in [2u32, 2, 1, 2].into_iter().enumerate() {
        for (number, points) in clouds.iter().enumerate() {
            let (mut voxels, mut places, mut counts) = ([7.0f32; 18], [7i32; 9], [7i32; 3]);
            let (spec, count, mut totals) = (spec(max_points), points.len() as u64 / 3, [0i32; 2]);
            // SAFETY: there is room for three voxels.
            let status = unsafe {
                plimsoll_hard_voxelize(
                    &raw const spec,
                    points.as_ptr(),
                    3,
                    &raw const count,
                    1,
                    3,
                    voxels.as_mut_ptr(),
                    places.as_mut_ptr(),
                    counts.as_mut_ptr(),
                    totals.as_mut_ptr(),
                )
            };
            assert_eq!(status, PlimsollStatus::Ok, "{}", said());
            let want: (&[i32], &[i32]) = match number {
                0 => (&[0, 1, 2, 0, 0, 0], &[2, 1]),
                1 => (&[0, 0, 0], &[1]),
                _ => (&[0, 2, 3, 0, 1, 2], &[1, 1]),
            };
            let voxels = totals[1] as usize;
            assert_eq!(places[..voxels * 3], *want.0, "round {round}");
            let most = max_points.cast_signed();
            let wanted: Vec<i32> = want.1.iter().map(|count| (*count).min(most)).collect();
            assert_eq!(counts[..voxels], wanted[..], "round {round}");
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let (mut pillars, mut scatter, spec) = (ptr::null_mut(), ptr::null_mut(), spec(2));
    // SAFETY: the pointers lead to memory of their types.
    let (a, b, c) = unsafe {
        (
            plimsoll_cuda_pillars_create(&raw const spec, 4, 1, 10, 99, &raw mut pillars),
            plimsoll_cuda_scatter_create(10, 99, &raw mut scatter),
            plimsoll_cuda_scatter_create(10, 99, ptr::null_mut()),
        )
    };
    assert_eq!([a, b], [PlimsollStatus::Unavailable; 2], "{}", said());
    assert_eq!(c, PlimsollStatus::BadArgument);
    assert!(pillars.is_null() && scatter.is_null());
    // SAFETY: null is nothing.
    unsafe {
        plimsoll_cuda_pillars_destroy(pillars);
        plimsoll_cuda_scatter_destroy(scatter);
    }
}
