"""One of several processes that come to a line one after the other, each to take what is left."""
import os
import sys
import time

from driver import MIB, alloc, context

time.sleep(float(sys.argv[1]))
try:
    context()
except RuntimeError as problem:
    print(f"late: process {os.getpid()} got no context ({problem})")
    sys.exit()
count = 0
while alloc(32 * MIB)[0] == 0:
    count += 1
print(f"late: process {os.getpid()} after {sys.argv[1]} s held {count * 32} MiB")
time.sleep(5 - float(sys.argv[1]))
