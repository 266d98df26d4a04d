//! Hard and dynamic voxels: arrays of numpy on the host, tensors where they are.

use std::sync::{Mutex, PoisonError};

use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArray3, PyArray4, PyArrayMethods, PyReadonlyArray1,
    PyReadonlyArray2, PyReadonlyArray3,
};
use plimsoll_points::backend::cuda::PillarCount;
use plimsoll_points::network::{
    CoordinateForm, HardHost, HardSlices, HardSpec, HardVoxels, PillarSlices, PointBatch,
    birds_eye, dynamic_coordinates, pillar_features,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::cuda::{self, HardCall};
use super::workers;
use crate::errors::OrRaise;

type HardArrays<'py> =
    (Bound<'py, PyArray3<f32>>, Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<i32>>);

/// Hard voxelization of one cloud at a time.
#[pyclass(name = "HardVoxelizer", module = "plimsoll._plimsoll", frozen)]
#[derive(Debug)]
pub(crate) struct PyHardVoxelizer {
    spec: HardSpec,
    /// What calls on the host work in. One takes it, and others make their own meanwhile: a thread that
    /// waited here for another's call could be the one that this call's own work waits for.
    kept: Mutex<Option<HardHost>>,
}

impl PyHardVoxelizer {
    /// Does a batch's work on the host with what was kept.
    fn on_host<T: Send>(
        &self,
        py: Python<'_>,
        batch: &PointBatch<'_>,
        work: impl FnOnce(&mut HardHost) -> plimsoll::Result<T> + Send,
    ) -> PyResult<T> {
        let kept = self.kept.try_lock().ok().and_then(|mut kept| kept.take());
        let mut host = kept.unwrap_or_else(|| HardHost::new(self.spec));
        let made = run(py, batch, || work(&mut host));
        if let Ok(mut kept) = self.kept.try_lock() {
            *kept = Some(host);
        }
        made
    }
}

#[pymethods]
impl PyHardVoxelizer {
    #[new]
    #[pyo3(signature = (voxel_size, point_cloud_range, max_points, max_voxels, order = "zyx"))]
    fn new(
        voxel_size: [f32; 3],
        point_cloud_range: [f32; 6],
        max_points: u32,
        max_voxels: u32,
        order: &str,
    ) -> PyResult<PyHardVoxelizer> {
        let form = CoordinateForm { order: order.parse().or_raise()?, batch_index: false };
        let spec = HardSpec::new(voxel_size, point_cloud_range, max_points, max_voxels);
        let spec = spec.or_raise()?.with_form(form);
        Ok(PyHardVoxelizer { spec, kept: Mutex::new(None) })
    }

    /// Voxels along x, y and z.
    #[getter]
    fn grid_size(&self) -> [u32; 3] {
        self.spec.grid().cells()
    }

    /// Voxels, coordinates and numbers of points of an array's points.
    fn hard<'py>(
        &self,
        py: Python<'py>,
        points: PyReadonlyArray2<'py, f32>,
    ) -> PyResult<HardArrays<'py>> {
        let (floats, columns) = floats(&points)?;
        let batch = PointBatch::one(floats, columns).or_raise()?;
        let made = self.on_host(py, &batch, |host| {
            let mut made = HardVoxels::default();
            host.run(&batch, &mut made)?;
            Ok(made)
        })?;
        let voxels = made.num_points.len();
        let each = [voxels, self.spec.max_points() as usize, columns];
        Ok((
            made.voxels.into_pyarray(py).reshape(each)?,
            made.coordinates.into_pyarray(py).reshape([voxels, 3])?,
            made.num_points.into_pyarray(py),
        ))
    }

    /// The same into arrays that have room for as many voxels as there can be; gives their number.
    fn hard_into(
        &self,
        py: Python<'_>,
        points: PyReadonlyArray2<'_, f32>,
        voxels: &Bound<'_, PyArray3<f32>>,
        coordinates: &Bound<'_, PyArray2<i32>>,
        num_points: &Bound<'_, PyArray1<i32>>,
    ) -> PyResult<usize> {
        let (floats, columns) = floats(&points)?;
        let batch = PointBatch::one(floats, columns).or_raise()?;
        let mut voxels = voxels.try_readwrite().map_err(not_writeable)?;
        let mut coordinates = coordinates.try_readwrite().map_err(not_writeable)?;
        let mut num_points = num_points.try_readwrite().map_err(not_writeable)?;
        let to = HardSlices {
            voxels: voxels.as_slice_mut().map_err(not_contiguous)?,
            coordinates: coordinates.as_slice_mut().map_err(not_contiguous)?,
            num_points: num_points.as_slice_mut().map_err(not_contiguous)?,
        };
        let made = self.on_host(py, &batch, |host| host.run_into(&batch, to))?;
        Ok(made.into_iter().sum())
    }

    /// The voxel of every point of an array, or −1.
    fn dynamic<'py>(
        &self,
        py: Python<'py>,
        points: PyReadonlyArray2<'py, f32>,
    ) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let (floats, columns) = floats(&points)?;
        let batch = PointBatch::one(floats, columns).or_raise()?;
        let grid = self.spec.grid();
        let made = run(py, &batch, || dynamic_coordinates(&batch, grid, self.spec.form()))?;
        let points = made.len() / 3;
        made.into_pyarray(py).reshape([points, 3])
    }

    /// The features of pillars, of arrays that `hard` made.
    fn pillars<'py>(
        &self,
        py: Python<'py>,
        voxels: PyReadonlyArray3<'py, f32>,
        coordinates: PyReadonlyArray2<'py, i32>,
        num_points: PyReadonlyArray1<'py, i32>,
    ) -> PyResult<Bound<'py, PyArray3<f32>>> {
        let columns = voxels.as_array().dim().2;
        let made = PillarSlices {
            voxels: voxels.as_slice().map_err(not_contiguous)?,
            coordinates: coordinates.as_slice().map_err(not_contiguous)?,
            num_points: num_points.as_slice().map_err(not_contiguous)?,
        };
        let shape = [made.num_points.len(), self.spec.max_points() as usize, columns + 6];
        let work = || pillar_features(made, &self.spec, columns);
        let features = workers::interruptible(py, |_| work())?;
        features.into_pyarray(py).reshape(shape)
    }

    /// The image from above of a row of values for each pillar.
    fn birds_eye<'py>(
        &self,
        py: Python<'py>,
        values: PyReadonlyArray2<'py, f32>,
        coordinates: PyReadonlyArray2<'py, i32>,
    ) -> PyResult<Bound<'py, PyArray4<f32>>> {
        let features = values.as_array().ncols();
        let rows = values.as_slice().map_err(not_contiguous)?;
        let places = coordinates.as_slice().map_err(not_contiguous)?;
        let work = || birds_eye(rows, features, places, &self.spec, 1);
        let image = workers::interruptible(py, |_| work())?;
        let [_, height, width] = self.spec.grid().dims().map(|extent| extent as usize);
        image.into_pyarray(py).reshape([1, features, height, width])
    }

    /// Queues the features of `count` pillars of tensors on a GPU, on a stream of the caller's.
    #[expect(clippy::too_many_arguments, reason = "what Python knows of four tensors")]
    fn pillars_resident(
        &self,
        py: Python<'_>,
        device: u32,
        stream: usize,
        count: u64,
        columns: usize,
        voxels: u64,
        coordinates: u64,
        num_points: u64,
        features: u64,
    ) -> PyResult<()> {
        py.detach(|| {
            let (pillars, stream) = cuda::pillars(device, stream, &self.spec, columns, count)?;
            let count = PillarCount { most: count, total: 0 };
            // SAFETY: as above.
            unsafe { pillars.features(stream, count, [voxels, coordinates, num_points], features) }
        })
        .or_raise()
    }

    /// The same for the image from above.
    #[expect(clippy::too_many_arguments, reason = "what Python knows of three tensors")]
    fn birds_eye_resident(
        &self,
        py: Python<'_>,
        device: u32,
        stream: usize,
        count: u64,
        features: u32,
        values: u64,
        coordinates: u64,
        image: u64,
    ) -> PyResult<()> {
        py.detach(|| {
            let (pillars, stream) = cuda::pillars(device, stream, &self.spec, 3, count)?;
            let count = PillarCount { most: count, total: 0 };
            // SAFETY: as above.
            unsafe { pillars.birds_eye(stream, count, [values, coordinates], (features, 1), image) }
        })
        .or_raise()
    }

    /// Queues the first half of hard voxelization of a tensor on a GPU, on a stream of the caller's.
    /// It reads points alone: what the other half writes to can be allocated while it runs.
    fn hard_resident(
        &self,
        py: Python<'_>,
        device: u32,
        stream: usize,
        points: u64,
        count: u64,
        columns: usize,
    ) -> PyResult<PyHardCall> {
        // SAFETY: the caller's tensor, which it keeps until its stream is past the launch.
        let start =
            || unsafe { HardCall::start((device, stream), &self.spec, columns, count, points) };
        Ok(PyHardCall(Mutex::new(Some(py.detach(start).or_raise()?))))
    }

    /// The same for the voxel of every point.
    #[expect(clippy::too_many_arguments, reason = "what Python knows of two tensors")]
    fn dynamic_resident(
        &self,
        py: Python<'_>,
        device: u32,
        stream: usize,
        points: u64,
        count: u64,
        columns: usize,
        coordinates: u64,
    ) -> PyResult<()> {
        py.detach(|| {
            let (places, stream) = cuda::places(device, stream, &self.spec, columns)?;
            // SAFETY: as above.
            unsafe { places.launch(stream, points, count, coordinates) }
        })
        .or_raise()
    }
}

/// Hard voxelization of a tensor on a GPU whose first half is queued.
#[pyclass(name = "HardCall", module = "plimsoll._plimsoll", frozen)]
pub(crate) struct PyHardCall(Mutex<Option<HardCall>>);

#[pymethods]
impl PyHardCall {
    /// Queues the other half, and gives the number of voxels, which may still be in the making.
    fn finish(
        &self,
        py: Python<'_>,
        voxels: u64,
        coordinates: u64,
        num_points: u64,
    ) -> PyResult<u64> {
        let call = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let call = call.ok_or_else(|| PyValueError::new_err("it is finished already"))?;
        // SAFETY: the caller's tensors, which it keeps until its stream is past the launch.
        py.detach(|| unsafe { call.finish(voxels, coordinates, num_points) }).or_raise()
    }
}

/// Does a batch's work with the interpreter released: here where it is small, otherwise on threads
/// while this one looks for Ctrl-C.
fn run<T: Send>(
    py: Python<'_>,
    batch: &PointBatch<'_>,
    work: impl FnOnce() -> plimsoll::Result<T> + Send,
) -> PyResult<T> {
    if HardHost::works_alone(batch) {
        return py.detach(work).or_raise();
    }
    workers::interruptible(py, |_| work())
}

fn not_writeable(error: numpy::BorrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn not_contiguous(error: numpy::AsSliceError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn floats<'a>(points: &'a PyReadonlyArray2<'_, f32>) -> PyResult<(&'a [f32], usize)> {
    let floats = points.as_slice().map_err(not_contiguous)?;
    let columns = points.as_array().ncols();
    if columns < 3 {
        return Err(PyValueError::new_err("points must have at least three columns: x, y and z"));
    }
    Ok((floats, columns))
}
