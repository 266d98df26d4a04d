"""mmcv's own voxelization operator, built from its sources on PyPI; nothing of it is kept here.

    operator = load(folder, cuda=False)      # compiles what is not compiled yet
    operator.hard(points, size, range, max_points, max_voxels, deterministic=True)
    operator.dynamic(points, size, range)
"""
import html
import os
import pathlib
import re
import tarfile
import urllib.parse
import urllib.request

VERSION = "2.2.0"
INDEX = "https://pypi.org/simple/mmcv/"
# What mmcv's own binding does for all of its operators, for these two.
BINDING = r"""
#include <torch/extension.h>
#include "pytorch_cpp_helper.hpp"
#include "pytorch_device_registry.hpp"

void hard_voxelize_forward(const at::Tensor &points, const at::Tensor &voxel_size, const at::Tensor &coors_range,
                           at::Tensor &voxels, at::Tensor &coors, at::Tensor &num_points_per_voxel,
                           at::Tensor &voxel_num, const int max_points, const int max_voxels, const int NDim,
                           const bool deterministic);
void dynamic_voxelize_forward(const at::Tensor &points, const at::Tensor &voxel_size, const at::Tensor &coors_range,
                              at::Tensor &coors, const int NDim);

#ifdef MMCV_WITH_CUDA
#define SIZES const std::vector<float> voxel_size, const std::vector<float> coors_range
#define HARD const at::Tensor &points, at::Tensor &voxels, at::Tensor &coors, at::Tensor &num_points_per_voxel, SIZES, \
             const int max_points, const int max_voxels, const int NDim
int HardVoxelizeForwardCUDAKernelLauncher(HARD);
int NondeterministicHardVoxelizeForwardCUDAKernelLauncher(HARD);
void DynamicVoxelizeForwardCUDAKernelLauncher(const at::Tensor &points, at::Tensor &coors, SIZES, const int NDim);
int hard_voxelize_forward_impl(HARD);
int nondeterministic_hard_voxelize_forward_impl(HARD);
void dynamic_voxelize_forward_impl(const at::Tensor &points, at::Tensor &coors, SIZES, const int NDim);
REGISTER_DEVICE_IMPL(hard_voxelize_forward_impl, CUDA, HardVoxelizeForwardCUDAKernelLauncher);
REGISTER_DEVICE_IMPL(nondeterministic_hard_voxelize_forward_impl, CUDA,
                     NondeterministicHardVoxelizeForwardCUDAKernelLauncher);
REGISTER_DEVICE_IMPL(dynamic_voxelize_forward_impl, CUDA, DynamicVoxelizeForwardCUDAKernelLauncher);
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("hard", &hard_voxelize_forward);
  m.def("dynamic", &dynamic_voxelize_forward);
}
"""


def fetch(folder):
    """The sources of mmcv, from a file `mmcv.tar.gz` that is there, or from PyPI."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    archive, sources = folder / "mmcv.tar.gz", folder / f"mmcv-{VERSION}/mmcv/ops/csrc"
    if not sources.is_dir():
        if not archive.is_file():
            # The index of files, which every copy of PyPI has; not all have its JSON.
            with urllib.request.urlopen(INDEX) as answer:
                link = re.search(rf'href="([^"#]*mmcv-{re.escape(VERSION)}\.tar\.gz)', answer.read().decode())
            if link is None:
                raise RuntimeError(f"{INDEX} has no sources of mmcv {VERSION}")
            urllib.request.urlretrieve(urllib.parse.urljoin(INDEX, html.unescape(link[1])), archive)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return sources


class Operator:
    def __init__(self, torch, raw):
        self.torch, self.raw = torch, raw

    def hard(self, points, size, extent, max_points, max_voxels, deterministic=True):
        """As mmcv's Voxelization calls it."""
        torch = self.torch
        voxels = points.new_zeros(size=(max_voxels, max_points, points.size(1)))
        coors = points.new_zeros(size=(max_voxels, 3), dtype=torch.int)
        counts = points.new_zeros(size=(max_voxels,), dtype=torch.int)
        number = torch.zeros(size=(), dtype=torch.long)
        self.raw.hard(points, torch.tensor(size, dtype=torch.float), torch.tensor(extent, dtype=torch.float), voxels,
                      coors, counts, number, max_points, max_voxels, 3, deterministic)
        return voxels[:number], coors[:number], counts[:number]

    def dynamic(self, points, size, extent):
        torch = self.torch
        coors = points.new_zeros(size=(points.size(0), 3), dtype=torch.int)
        self.raw.dynamic(points, torch.tensor(size, dtype=torch.float), torch.tensor(extent, dtype=torch.float), coors, 3)
        return coors


def load(folder, cuda=False):
    import torch
    from torch.utils import cpp_extension
    sources, built = fetch(folder), pathlib.Path(folder) / ("built-cuda" if cuda else "built")
    built.mkdir(exist_ok=True)
    name = "mmcv_voxels_cuda" if cuda else "mmcv_voxels"
    ready = built / f"{name}.so"
    if ready.is_file():
        import importlib.util
        spec = importlib.util.spec_from_file_location(name, ready)
        raw = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(raw)
        return Operator(torch, raw)
    binding = built / "binding.cpp"
    binding.write_text(BINDING)
    # Two of the files have one name, which the build takes for one file.
    on_host = built / "on_host.cpp"
    on_host.write_text('#include "pytorch/cpu/voxelization.cpp"\n')
    files = [binding, on_host, sources / "pytorch/voxelization.cpp"]
    flags, include = ["-O3"], [sources, sources / "common"]
    if cuda:
        files.append(sources / "pytorch/cuda/voxelization_cuda.cu")
        flags.append("-DMMCV_WITH_CUDA")
        include.append(sources / "common/cuda")
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "{}.{}".format(*torch.cuda.get_device_capability()))
    raw = cpp_extension.load(name=name, sources=list(map(str, files)), extra_include_paths=list(map(str, include)),
                             extra_cflags=flags, extra_cuda_cflags=flags if cuda else None,
                             build_directory=str(built), with_cuda=cuda)
    return Operator(torch, raw)
