"""What the whole device holds, by NVML."""
import ctypes, os
_n = ctypes.CDLL("libnvidia-ml.so.1")
class Mem(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]
_n.nvmlInit_v2()
_h = ctypes.c_void_p(); _n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(_h))
def used():
    m = Mem(); _n.nvmlDeviceGetMemoryInfo(_h, ctypes.byref(m)); return m.used
