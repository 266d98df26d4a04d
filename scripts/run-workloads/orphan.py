"""Fills the limit beside a killed process whose forked child lives on, and again when the child is gone too."""
import os
import signal
import subprocess
import sys
import time

from driver import MIB, alloc, context, free


def fill():
    held = []
    while True:
        code, pointer = alloc(32 * MIB)
        if code:
            return held
        held.append(pointer)


holder = subprocess.Popen([sys.executable, "inherited.py", "hold"], stdout=subprocess.PIPE, text=True)
child = int(holder.stdout.readline())
holder.kill()
holder.wait()
context()
first = fill()
time.sleep(0.5)
for pointer in first:
    free(pointer)
os.kill(child, signal.SIGKILL)
time.sleep(1)
second = fill()
time.sleep(0.5)
print(f"orphan: {len(first) * 32} MiB beside a killed process of 2 GiB whose child lives, {len(second) * 32} MiB when the child is gone")
