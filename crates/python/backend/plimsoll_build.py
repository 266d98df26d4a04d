"""Builds the wheel: maturin's, with the command `plimsoll` in its scripts.

maturin puts a binary or an extension into a wheel, not both. So this builds the command first
and leaves it in the folder that maturin copies into the wheel as its data (`tool.maturin.data`).

`pip install . --config-settings build-args="--profile dev"` builds both without optimisation.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import (  # noqa: F401
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "target/python/plimsoll.data"
# maturin refuses a folder that is not there, also when it is only asked for the metadata.
DATA.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    place_command(maturin.get_maturin_pep517_args(config_settings))
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    place_command(maturin.get_maturin_pep517_args(config_settings))
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def place_command(arguments):
    """Builds the command in the profile and for the target of the extension."""
    profile, target = named(arguments, "--profile", "release"), named(arguments, "--target", None)
    cargo = os.environ.get("CARGO", "cargo")
    words = [cargo, "build", "--package", "plimsoll-cli", "--profile", profile]
    words += ["--target", target] if target else []
    subprocess.run(words, cwd=ROOT, check=True)
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = ROOT / folder / (target or "") / ("debug" if profile == "dev" else profile) / "plimsoll"
    ship(built, strip="strip" if target is None else None)


def ship(built, strip):
    """Leaves a built command where maturin takes it from, without its symbols where it can."""
    place = DATA / "scripts/plimsoll"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built, place)
    if strip and shutil.which(strip):
        subprocess.run([strip, place], check=True)


def named(arguments, name, otherwise):
    """The value of a flag of maturin's, in either of its spellings."""
    for at, word in enumerate(arguments):
        if word == name and at + 1 < len(arguments):
            return arguments[at + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return otherwise
