"""One of several processes that take what they can of one budget."""
import os
import sys
import time

from driver import MIB, alloc, context, free

context()
# Everybody has a context before anybody fills: a context that does not fit is refused.
time.sleep(2)
held, refused, most = [], 0, 0
end = time.time() + float(sys.argv[1])
while time.time() < end:
    code, pointer = alloc(32 * MIB)
    if code:
        refused += 1
        for _ in range(len(held) // 2):
            free(held.pop())
    else:
        held.append(pointer)
        most = max(most, len(held))
while alloc(32 * MIB)[0] == 0:
    pass
time.sleep(0.5)
print(f"sharing: process {os.getpid()} held up to {most * 32} MiB and was refused {refused} times")
