//! The flags of `plimsoll voxelize`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use plimsoll::backend::{BackendKind, DeviceId};
use plimsoll_points::network::{CoordinateForm, CoordinateOrder, HardSpec};
use plimsoll_points::{Batch, Cells, VoxelGrid, VoxelMode, VoxelSpec};

use crate::limit::LimitArgs;
use crate::outcome::OrBadInput;

const EXAMPLES: &str = "\
Examples:
  plimsoll voxelize cloud.npy --grid 128,128,128 --voxel-size 0.05 --origin 0,0,0 --out grid.npy
  plimsoll voxelize scans/ --grid 40,400,352 --voxel-size 0.2,0.2,0.1 --origin 0,-40,-3 \\
    --mode mean --out means.npy --preview means.png
  plimsoll voxelize 'scans/*.bin' --grid 64,512,512 --voxel-size 0.2 --origin -51.2,-51.2,-5 \\
    --dtype bits --gpu-mem-limit 2GiB --out bits.npy --json
  plimsoll voxelize 'scans/*.bin' --hard --max-points 32 --max-voxels 40000 \\
    --range 0,-39.68,-3,69.12,39.68,1 --voxel-size 0.16,0.16,4 --out pillars.npz
  plimsoll voxelize --compile-kernels kernels --target sm_87 --features 1

Files: .npy and .npz ([N,3], [B,N,3], more columns are features), .ply, .pcd, KITTI's .bin.
A folder, a pattern in quotes or several files are a batch, whose clouds may differ in length.
The result is [B,D,H,W], or [B,F,D,H,W] for mean and max; one cloud of [N,3] has no B.
With --hard it is an .npz of voxels [M,P,C], coordinates [M,3] (or [M,4] for a batch, with the
number of the cloud in front) and num_points [M], as detection networks take them.";

/// Turn point clouds into voxel grids, cut to what memory there is
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file, a folder or a pattern; several are one batch, in this order
    #[arg(value_name = "IN", required_unless_present = "compile_kernels")]
    pub(super) input: Vec<PathBuf>,
    /// Voxels along depth (z), height (y) and width (x)
    #[arg(long, value_name = "D,H,W", required_unless_present_any = ["compile_kernels", "hard"])]
    grid: Option<Three<u32>>,
    /// The size of a voxel, or its sizes along x, y and z
    #[arg(long, value_name = "S|X,Y,Z", required_unless_present = "compile_kernels")]
    voxel_size: Option<Sizes>,
    /// Where the first voxel begins
    #[arg(
        long,
        value_name = "X,Y,Z",
        allow_hyphen_values = true,
        required_unless_present_any = ["compile_kernels", "hard"]
    )]
    origin: Option<Three<f32>>,
    #[command(flatten)]
    pub(super) hard: HardArgs,
    /// What is computed for a voxel: occupancy, count, mean or max (of features)
    #[arg(long, value_name = "MODE", default_value = "occupancy")]
    mode: VoxelMode,
    /// f32, u8 or bits (occupancy), u32 (count), or sparse: only voxels with points
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Cells>,
    /// Who makes it: auto, host, cuda or opencl, or cuda:1 for the second
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(super) backend: Choice,
    /// Clouds at a time: auto, or a number, kept as far as they fit
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    pub(super) chunk: ChunkClouds,
    #[command(flatten)]
    pub(super) limit: LimitArgs,
    /// The file to write: .npy, or .npz for sparse results (.npy: the coordinates of occupancy alone)
    #[arg(long, value_name = "FILE", required_unless_present = "compile_kernels")]
    pub(super) out: Option<PathBuf>,
    /// Also draw the first cloud's grid from three sides, as PNG (of mean and max, where the
    /// first feature is not 0)
    #[arg(long, value_name = "FILE")]
    pub(super) preview: Option<PathBuf>,
    /// Instead of all this, compile the kernels of CUDA into a folder, for boards without
    /// NVRTC; there, PLIMSOLL_KERNELS names the folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["input", "out"])]
    pub(super) compile_kernels: Option<PathBuf>,
    /// The kind of device to compile for: sm_87 is an Orin, sm_90 a Hopper
    #[arg(long, value_name = "sm_NN", default_value = "sm_87", requires = "compile_kernels")]
    pub(super) target: String,
    /// Features of the points whose mean or maximum will be wanted, such as 1,3
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "compile_kernels")]
    pub(super) features: Vec<usize>,
}

/// Hard voxels.
#[derive(Debug, clap::Args)]
pub(super) struct HardArgs {
    /// Make what detection networks take: the first points of the first voxels, in the order of
    /// points
    #[arg(
        long,
        requires_all = ["range", "max_points", "max_voxels"],
        conflicts_with_all = ["grid", "origin", "mode", "dtype", "preview"]
    )]
    hard: bool,
    /// The range that voxels fill
    #[arg(long, value_name = "X0,Y0,Z0,X1,Y1,Z1", allow_hyphen_values = true, requires = "hard")]
    range: Option<Six>,
    /// Points of a voxel at most
    #[arg(long, value_name = "P", requires = "hard")]
    max_points: Option<u32>,
    /// Voxels of a cloud at most
    #[arg(long, value_name = "M", requires = "hard")]
    max_voxels: Option<u32>,
    /// The order of coordinates: zyx (mmcv, OpenPCDet, spconv) or xyz
    #[arg(long, value_name = "ORDER", default_value = "zyx", requires = "hard")]
    order: CoordinateOrder,
}

/// What to make, with everything that it needs.
pub(super) struct Wanted<'a> {
    pub(super) input: &'a [PathBuf],
    pub(super) out: &'a Path,
    grid: VoxelGrid,
}

impl Args {
    /// What is to be made; nothing where kernels are to be compiled instead.
    pub(super) fn wanted(&self) -> plimsoll::Result<Option<Wanted<'_>>> {
        let Args { input, out, grid, voxel_size, origin, .. } = self;
        let (Some(out), Some(grid), Some(size), Some(origin)) = (out, grid, voxel_size, origin)
        else {
            return Ok(None);
        };
        let grid = VoxelGrid::new(grid.0, size.0, origin.0)?;
        Ok(Some(Wanted { input, out, grid }))
    }

    /// Hard voxels, where these are to be made of clouds; `stacked` says that there are several.
    pub(super) fn hard(&self, stacked: bool) -> plimsoll::Result<Option<HardSpec>> {
        let HardArgs { hard, range, max_points, max_voxels, order } = &self.hard;
        let (Some(size), Some(range), Some(points), Some(voxels), true) =
            (self.voxel_size, range, max_points, max_voxels, hard)
        else {
            return Ok(None);
        };
        let form = CoordinateForm { order: *order, batch_index: stacked };
        Ok(Some(HardSpec::new(size.0, range.0, *points, *voxels)?.with_form(form)))
    }

    /// What is computed from these clouds. Their features matter only in a mode that uses them.
    pub(super) fn spec(&self, wanted: &Wanted<'_>, batch: &Batch) -> anyhow::Result<VoxelSpec> {
        let cells = self.dtype.unwrap_or_else(|| Cells::of(self.mode));
        let features = if self.mode.of_features() { batch.features() } else { Ok(0) };
        let features = features.or_bad_input(|| "the clouds differ in their features")?;
        Ok(VoxelSpec::new(wanted.grid, self.mode, cells, features)?)
    }
}

/// Three numbers with commas between them.
#[derive(Debug, Clone, Copy)]
struct Three<T>([T; 3]);

impl<T: FromStr> FromStr for Three<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Three<T>, String> {
        let three = numbers(text).map(Three);
        three.ok_or_else(|| "it must be three numbers with commas between them".into())
    }
}

/// As many numbers as are wanted, with commas between them.
fn numbers<T: FromStr, const N: usize>(text: &str) -> Option<[T; N]> {
    let numbers: Option<Vec<T>> =
        text.split(',').map(|number| number.trim().parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok())
}

/// The first and the last corner of a range.
#[derive(Debug, Clone, Copy)]
struct Six([f32; 6]);

impl FromStr for Six {
    type Err = String;

    fn from_str(text: &str) -> Result<Six, String> {
        let six = numbers(text).map(Six);
        six.ok_or_else(|| "it must be six numbers with commas between them".into())
    }
}

/// One size for all axes, or three.
#[derive(Debug, Clone, Copy)]
struct Sizes([f32; 3]);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        match text.parse::<f32>() {
            Ok(size) => Ok(Sizes([size; 3])),
            Err(_) => text.parse::<Three<f32>>().map(|three| Sizes(three.0)).map_err(|_| {
                "it must be one number, or three (along x, y and z) with commas between them".into()
            }),
        }
    }
}

/// A device, or none for whichever is best.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice(pub(super) Option<DeviceId>);

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "auto" {
            return Ok(Choice(None));
        }
        match text.parse::<DeviceId>() {
            Ok(device) if device.kind != BackendKind::Sim => Ok(Choice(Some(device))),
            _ => Err("it must be auto, host (or cpu), cuda:N or opencl:N".to_string()),
        }
    }
}

/// Clouds of a chunk, or none for the plan's.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkClouds(pub(super) Option<u64>);

impl FromStr for ChunkClouds {
    type Err = String;

    fn from_str(text: &str) -> Result<ChunkClouds, String> {
        match text.parse() {
            _ if text == "auto" => Ok(ChunkClouds(None)),
            Ok(clouds) if clouds > 0 => Ok(ChunkClouds(Some(clouds))),
            _ => Err("it must be auto or a number of clouds above 0".to_string()),
        }
    }
}
