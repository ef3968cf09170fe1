"""The vendor's enumerations of transfers."""

from enum import Enum

from openwafer.sdk.host import DataType, Order

__all__ = ["MemcpyDataType", "MemcpyOrder"]


class MemcpyDataType(Enum):
    """Size of an element in copy mode."""

    MEMCPY_16BIT = 0
    MEMCPY_32BIT = 1

    @property
    def data_type(self) -> DataType:
        """Our word for it."""
        return DataType(self.value)


class MemcpyOrder(Enum):
    """Order of a host tensor."""

    ROW_MAJOR = 0
    COL_MAJOR = 1

    @property
    def order(self) -> Order:
        """Our word for it."""
        return Order(self.value)
