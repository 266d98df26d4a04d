"""The kernels of hard voxels with other constants, beside those that the library uses: which is the fastest.

Kernels are compiled by CuPy from the sources of this folder's repository and launched one behind the other, without
the early start of the second that the library asks for; so times are a little longer, and compare with each other.
"""
import pathlib

import numpy as np

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "crates/points/src/kernels"
PARTS = ("dialect", "place", "early", "features", "voxel_place", "hard", "hard_runs")
OWN = {"HARD_LANES": 256, "FILL_BLOCKS": 5, "SLOTS_OF_FOUR": 8}
TRIED = [{}, {"SLOTS_OF_FOUR": 5}, {"SLOTS_OF_FOUR": 6}, {"SLOTS_OF_FOUR": 12}, {"HARD_LANES": 128, "FILL_BLOCKS": 10},
         {"HARD_LANES": 128, "FILL_BLOCKS": 12}, {"HARD_LANES": 512, "FILL_BLOCKS": 2}, {"FILL_BLOCKS": 4}, {"LIST": 16},
         {"SLOTS_OF_FOUR": 6, "HARD_LANES": 128, "FILL_BLOCKS": 10}]


class Launch:
    """The two kernels of one variant for some clouds of equal length."""

    def __init__(self, torch, cupy, case, points, clouds, constants):
        self.torch, self.cupy, self.clouds = torch, cupy, clouds
        count, columns = len(points) // clouds, points.shape[1]
        flags = {"STRIDE": columns, "WIDE": 0, "WIDE_KEYS": 0, "WHOLE": 1, "DIVISION": 3, "RAGGED": 0, "OUT_U8": 0,
                 "MAX_POINTS": case.max_points, "COORDINATES": 4, "ORDER_XYZ": 0, "LIST": 64 if case.max_points > 16 else 32,
                 **OWN, **constants}
        source = "".join((KERNELS / f"{part}.h").read_text() for part in PARTS)
        options = (*(f"-D{name}={value}" for name, value in flags.items()), "--fmad=false", "--prec-div=true", "--ftz=false",
                   "-diag-suppress=177")
        module = cupy.RawModule(code=source, options=options)
        self.kernels = [module.get_function(name) for name in ("hard_insert", "hard_fill")]
        lanes, slots = flags["HARD_LANES"], len(points) * flags["SLOTS_OF_FOUR"] // 4 + 16
        self.across, self.lanes = -(-count // lanes), lanes
        blocks = self.across * clouds
        room = clouds * min(count, case.max_voxels)

        def memory(words, kind=torch.int32):
            return torch.zeros(words, dtype=kind, device="cuda")
        self.tables, self.lists = memory(2 * slots * 4), memory(slots * flags["LIST"])
        self.rows, self.owners = memory(slots * (case.max_points + 1)), memory(len(points))
        self.status, self.state, self.report = memory(2 * blocks + clouds), memory(2), memory(2 * blocks)
        self.made = [memory(room * case.max_points * columns, torch.float32), memory(room * 4), memory(room), memory(clouds + 1)]
        cells = [round((high - low) / size) for low, high, size in zip(case.range[:3], case.range[3:], case.size)]
        f32, u32, u64 = np.float32, np.uint32, np.uint64
        size = [f32(one) for one in case.size]
        grid = [*map(f32, case.range[:3]), *size, *(f32(1) / one for one in size), *map(u32, cells), u64(0), u64(np.prod(cells)),
                u64(count), u64(clouds)]

        def at(tensor):
            return u64(tensor.data_ptr())
        head = [at(points), u64(0), *grid, at(self.tables), u64(slots), at(self.lists), at(self.rows), at(self.owners),
                at(self.status), at(self.state)]
        self.arguments = [(*head, at(self.report)), (*head, u32(case.max_voxels), u32(0), *map(at, self.made))]

    def __call__(self):
        stream = self.cupy.cuda.ExternalStream(self.torch.cuda.current_stream().cuda_stream)
        with stream:
            for kernel, arguments in zip(self.kernels, self.arguments):
                kernel((self.across, self.clouds), (self.lanes,), arguments)

    def result(self):
        self.torch.cuda.synchronize()
        voxels, places, counts, totals = self.made
        total = int(totals[-1])
        each = voxels.numel() // counts.numel()
        return [voxels[: total * each].view(self.torch.int32), places[: total * 4], counts[:total], totals]


def table(torch, check, run, say):
    """Lines of a table: microseconds of each variant for each kind of cloud, cold."""
    import cupy
    random = np.random.default_rng(3)
    cases = [check.Case("250,000 points", *check.NUSCENES, check.nuscenes(random)),
             check.Case("pillars", *check.KITTI, check.kitti(random))]
    work = [(case, clouds) for case in cases for clouds in (1, 8)]
    lines = ["| constants | " + " | ".join(f"{clouds} x {case.name}, us" for case, clouds in work) + " |",
             "| --- " * (1 + len(work)) + "|"]
    first, best = [None] * len(work), [(None, np.inf)] * len(work)
    for constants in TRIED:
        name, row = " ".join(f"{key}={value}" for key, value in constants.items()) or "as they are", []
        for index, (case, clouds) in enumerate(work):
            points = torch.from_numpy(case.points).cuda().repeat(clouds, 1)
            try:
                launch = Launch(torch, cupy, case, points, clouds, constants)
                launch()
                launch()
                made = launch.result()
                first[index] = first[index] or made
                if not all(torch.equal(a, b) for a, b in zip(made, first[index])):
                    row.append("DIFFERENT")
                    continue
                us = run.kernels(launch, 20)
            except Exception as error:
                say(f"{name}: {str(error)[:200]}")
                row.append("failed")
                continue
            row.append(f"{us:.1f}")
            if us < best[index][1]:
                best[index] = (name, us)
        say(f"{name}: {', '.join(row)}")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    told = (f"{clouds} x {case.name}: {name} ({us:.1f} us)" for (case, clouds), (name, us) in zip(work, best))
    return [*lines, "", "The fastest: " + "; ".join(told)]
