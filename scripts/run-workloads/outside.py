"""A process outside the tree that takes and gives back 1 GiB until it is killed."""
from driver import MIB, alloc, context, free

context()
print("begins", flush=True)
while True:
    code, pointer = alloc(1024 * MIB)
    if code == 0:
        free(pointer)
