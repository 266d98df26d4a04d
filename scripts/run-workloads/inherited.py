"""Whether the driver keeps the memory of a process that was killed while a child of fork lives on, which has its open files."""
import os
import signal
import subprocess
import sys
import time

MIB = 1 << 20


def used():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(query, capture_output=True, text=True).stdout)


if len(sys.argv) > 1:
    from driver import alloc, context

    context()
    for _ in range(32):
        alloc(64 * MIB)
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        time.sleep(20)
        os._exit(0)
    print(child, flush=True)
    time.sleep(20)
else:
    before = used()
    parent = subprocess.Popen([sys.executable, __file__, "hold"], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    held = used() - before
    parent.kill()
    parent.wait()
    time.sleep(1)
    after = used() - before
    os.kill(child, signal.SIGKILL)
    time.sleep(1)
    print(f"inherited: {held} MiB held, {after} MiB a second after the parent was killed, {used() - before} MiB when its child was gone too")
