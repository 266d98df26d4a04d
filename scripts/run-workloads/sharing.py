"""One of several processes that take what they can of one budget."""
import os
import sys
import time

from driver import MIB, alloc, context, free

context()
held = []
end = time.time() + float(sys.argv[1])
while time.time() < end:
    code, pointer = alloc(32 * MIB)
    if code:
        for _ in range(len(held) // 2):
            free(held.pop())
    else:
        held.append(pointer)
print(f"sharing {os.getpid()}: holds {len(held) * 32} MiB at the end")
