"""Point clouds on a cluster of Ray's: files to grids to a function of your own, and to Parquet.

    pip install '.[ray]'          # in a checkout of Plimsoll
    python ray_grids.py scans/ grids/            # this machine
    python ray_grids.py s3://bucket/scans s3://bucket/grids --address auto --num-gpus 0.5
"""

import argparse

import numpy as np
import ray

from plimsoll.ray import Stage, voxelize


class CountVoxels:
    """What you do with grids: a model, for example. Made once in each actor; one batch at a time."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        filled = (batch["grid"] > 0).reshape(len(batch["grid"]), -1).sum(axis=1)
        return {"path": batch["path"], "filled": filled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", help="a folder of .npy, .npz, .ply, .pcd or .bin files")
    parser.add_argument("out", help="the folder of the Parquet files")
    parser.add_argument("--address", help="the cluster; without it, this machine")
    parser.add_argument("--num-gpus", type=float, default=0, help="GPUs of an actor; 0.5 is half of one")
    given = parser.parse_args()

    ray.init(address=given.address)
    files = ray.data.read_binary_files(given.scans, include_paths=True)
    # Each actor has a limit of its own, and batches that fit into it.
    grids = voxelize(files, (64, 64, 64), 1 / 64, dtype="uint8", num_gpus=given.num_gpus, workers=2)
    counted = grids.map_batches(**Stage(CountVoxels, num_gpus=given.num_gpus, workers=1))
    counted.write_parquet(given.out)


if __name__ == "__main__":
    main()
