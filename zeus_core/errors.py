"""The errors of this package: whose fault each is, and what to do.

    ZeusError
    ├── UsageError (also a ValueError)   the call is wrong: change the argument the message names
    ├── WorldError                       another process of the job did not answer: see its own log
    └── DeviceError                      the hardware or its driver refused
        ├── NoDeviceError                nothing to measure: install the driver, or use simulated GPUs
        ├── PermissionDeniedError        this process lacks the right: the message contains the command for an admin
        ├── DeviceHeldError              another process controls or shares this device: the message names it
        ├── NotSupportedError            this device lacks the function: use another method
        ├── DeviceLostError              the device is gone until a reset or a reboot
        └── DriverFaultError             the driver failed once: try again

Hooks that run inside training raise none of these (see `zeus_core.optimizer`).
"""

__all__ = [
    "DeviceError",
    "DeviceHeldError",
    "DeviceLostError",
    "DriverFaultError",
    "NoDeviceError",
    "NotSupportedError",
    "PermissionDeniedError",
    "UsageError",
    "WorldError",
    "ZeusError",
]


class ZeusError(Exception):
    """Base of every error raised by this package."""


class UsageError(ZeusError, ValueError):
    """An argument or a call is wrong; the message names the argument, its value and a working alternative."""


class WorldError(ZeusError):
    """The processes of a job could not reach each other in time."""


class DeviceError(ZeusError):
    """A device or its driver could not do what was asked."""


class NoDeviceError(DeviceError):
    """There is no such device, or no driver to reach it."""


class PermissionDeniedError(DeviceError):
    """This process lacks the right; the message contains the command that grants it."""


class DeviceHeldError(DeviceError):
    """Another process controls this device, with its user and job in the message, or computes on a part of it."""


class NotSupportedError(DeviceError):
    """The device does not have this function."""


class DeviceLostError(DeviceError):
    """The device fell off the bus or needs a reset."""


class DriverFaultError(DeviceError):
    """The driver failed in a way that may pass."""
