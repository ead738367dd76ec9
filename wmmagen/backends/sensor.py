"""Clock, power, temperature and throttle reasons of one GPU, through NVML. Imported by the child process alone."""

from __future__ import annotations

from collections.abc import Callable

from cuda.bindings import nvml

from wmmagen.timing import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, POWER_CAP, SW_THERMAL, Reading, Sensor

#: Bits of NVML's answer by their words. An idle device is no reason: it is one that the host keeps waiting.
_REASONS = {
    nvml.ClocksEventReasons.EVENT_REASON_APPLICATIONS_CLOCKS_SETTING: "applications-clocks",
    nvml.ClocksEventReasons.EVENT_REASON_SW_POWER_CAP: POWER_CAP,
    nvml.ClocksEventReasons.THROTTLE_REASON_HW_SLOWDOWN: HW_SLOWDOWN,
    nvml.ClocksEventReasons.EVENT_REASON_SYNC_BOOST: "sync-boost",
    nvml.ClocksEventReasons.EVENT_REASON_SW_THERMAL_SLOWDOWN: SW_THERMAL,
    nvml.ClocksEventReasons.THROTTLE_REASON_HW_THERMAL_SLOWDOWN: HW_THERMAL,
    nvml.ClocksEventReasons.THROTTLE_REASON_HW_POWER_BRAKE_SLOWDOWN: HW_POWER_BRAKE,
    nvml.ClocksEventReasons.EVENT_REASON_DISPLAY_CLOCK_SETTING: "display-clock",
}


#: What the bindings raise for a library that is not there, or one without a function; both are kinds of it.
_ABSENT = (RuntimeError,)


def find(pci_bus_id: str) -> Sensor | None:
    """The sensor of the GPU at ``pci_bus_id``; None where NVML is not there or tells neither clock nor reasons.

    The bus tells which GPU it is: NVML counts all of a machine, the driver those that CUDA_VISIBLE_DEVICES leaves.
    """
    try:
        nvml.init_v2()
        sensor = NvmlSensor(nvml.device_get_handle_by_pci_bus_id_v2(pci_bus_id))
        sensor.read()
    except (nvml.NvmlError, *_ABSENT):
        return None
    return sensor


class NvmlSensor:
    """See :class:`wmmagen.timing.Sensor`.

    Args:
        handle: NVML's, of the device.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def read(self) -> Reading:
        """What the sensors say now.

        Raises:
            nvml.NvmlError: the device tells no clock, or no reasons.
        """
        milliwatts = _perhaps(lambda: nvml.device_get_power_usage(self._handle))
        return Reading(
            clock_mhz=int(nvml.device_get_clock_info(self._handle, nvml.ClockType.CLOCK_SM)),
            throttle=words(int(nvml.device_get_current_clocks_event_reasons(self._handle))),
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=_perhaps(
                lambda: nvml.device_get_temperature_v(self._handle, nvml.TemperatureSensors.TEMPERATURE_GPU)
            ),
        )


def words(reasons: int) -> frozenset[str]:
    """The reasons in a mask of NVML that lower a clock."""
    return frozenset(word for bit, word in _REASONS.items() if reasons & bit)


def _perhaps(ask: Callable[[], int]) -> int | None:
    """An answer that not every device or driver has."""
    try:
        return int(ask())
    except (nvml.NotSupportedError, nvml.FunctionNotFoundError, *_ABSENT):
        return None
