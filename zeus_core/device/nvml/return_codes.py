"""The return codes of NVML, `nvmlReturn_t` in nvml.h: their meanings and remedies, in one table for all calls."""

from __future__ import annotations

from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
)

UNINITIALIZED, INVALID_ARGUMENT, FUNCTION_NOT_FOUND = 1, 2, 13

# Codes and meanings are those of nvmlReturn_t in the NVML API reference. A code that is not in the table, of a newer
# driver, counts as a passing driver fault.
_MEANINGS: dict[int, tuple[type[DeviceError], str]] = {
    1: (DriverFaultError, "NVML is not initialised in this process; this is repaired by itself at the next call"),
    2: (DriverFaultError, "the driver calls an argument invalid; check the value against `zeus-core top --once`"),
    3: (NotSupportedError, "this GPU does not have this function"),
    4: (PermissionDeniedError, "this needs root or CAP_SYS_ADMIN"),
    6: (NoDeviceError, "there is no such GPU; list the GPUs with `nvidia-smi -L`"),
    8: (DeviceLostError, "the GPU's external power cables are not attached"),
    9: (NoDeviceError, "the NVIDIA driver is not loaded; load it with `sudo modprobe nvidia`"),
    10: (DriverFaultError, "the driver did not answer in time"),
    11: (DriverFaultError, "the kernel has an interrupt problem with this GPU; see `dmesg`"),
    12: (NoDeviceError, "the NVIDIA driver's library libnvidia-ml.so.1 is not on this machine"),
    13: (NotSupportedError, "the installed driver is too old for this function; update the NVIDIA driver"),
    14: (DriverFaultError, "the GPU's info ROM is damaged; see `nvidia-smi -q`"),
    15: (DeviceLostError, "the GPU fell off the bus; it is back after a reset or a reboot"),
    16: (DeviceLostError, "the GPU needs a reset: `sudo nvidia-smi --gpu-reset`"),
    17: (PermissionDeniedError, "the operating system or the container keeps this process from the GPU"),
    18: (NoDeviceError, "the driver's kernel module and its library differ in version; reboot after the update"),
    19: (DriverFaultError, "the GPU is in use in a way that forbids this"),
    20: (DriverFaultError, "the driver is out of memory"),
    21: (DriverFaultError, "the GPU has no data for this yet"),
    24: (NotSupportedError, "this GPU does not have this function"),
    26: (NotSupportedError, "the installed driver no longer has this function"),
    27: (DriverFaultError, "the GPU is not ready yet"),
    28: (NoDeviceError, "there is no such GPU; list the GPUs with `nvidia-smi -L`"),
    29: (DriverFaultError, "the GPU is in a state that forbids this"),
    999: (
        DriverFaultError,
        "the driver failed without saying why; if `nvidia-smi` fails as well, a container has lost its GPUs, as after "
        "`systemctl daemon-reload` on its host: restart the container",
    ),  # github.com/NVIDIA/nvidia-container-toolkit/issues/48
}


def device_error(code: int, call: str) -> DeviceError:
    """Return the error to raise for an NVML code.

    Args:
        code: The `nvmlReturn_t` value.
        call: Words for the message, such as "reading the power of GPU-…".
    """
    kind, meaning = _MEANINGS.get(code, (DriverFaultError, "the driver failed in a way unknown to this version"))
    return kind(f"{call} failed: {meaning} (NVML error {code})")
