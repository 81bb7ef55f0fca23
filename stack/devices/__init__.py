"""One small interface over npu, cuda and cpu."""

from stack.devices.device import Device, Kind, open_device
from stack.devices.memory import is_out_of_memory
from stack.devices.probe import DeviceFacts, HostFacts, device_count, probe

__all__ = [
    "Device",
    "DeviceFacts",
    "HostFacts",
    "Kind",
    "device_count",
    "is_out_of_memory",
    "open_device",
    "probe",
]
