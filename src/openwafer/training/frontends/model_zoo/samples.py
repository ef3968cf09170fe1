"""Batches of the Model Zoo's HDF5 files of tokens."""

from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from openwafer.diagnostics import error
from openwafer.training.frontends.present.mdl_files import library

_FEATURES: Final = ("input_ids", "attention_mask", "labels")


class _Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples of a file, which is opened for each: processes that read may be several."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with library().File(path, "r") as file:
            shape = file["data"].shape if "data" in file else None
        if shape is None or len(shape) != 3 or shape[1] != len(_FEATURES):
            raise error(
                "trainer-data",
                f"{path} has "
                + ('no "data"' if shape is None else f'"data" of the shape {tuple(shape)}'),
                help="write int32 (samples, 3, length): ids, loss mask, labels",
            )
        self._length = int(shape[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with library().File(self._path, "r") as file:
            sample = torch.from_numpy(file["data"][index]).int()
        return dict(zip(_FEATURES, sample, strict=True))


def _samples_of(folders: list[Path]) -> ConcatDataset[dict[str, torch.Tensor]]:
    """Samples of all files of some folders, in the order of their names."""
    files = [path for folder in folders for path in sorted(folder.glob("*.h5"))]
    if not files:
        raise error(
            "trainer-data",
            f"no file *.h5 is in {', '.join(map(str, folders))}",
            help='give a folder of HDF5 files with "data" of int32 (samples, 3, length)',
        )
    return ConcatDataset([_Samples(path) for path in files])


class GptHDF5MapDataProcessor:
    """Batches of ``input_ids``, ``attention_mask`` (what of the loss counts) and ``labels``, int32.

    Labels are the next tokens already.

    Args:
        data_dir: one folder of ``*.h5`` or several.
        batch_size: samples of a batch.
        shuffle: in a new order each epoch.
        shuffle_seed: of the orders; by default torch's own generator.
        num_workers: processes that read.
        drop_last: whether a last batch that is smaller is left out.
        others: ``micro_batch_size`` and the like of the vendor's machine.

    Raises:
        OpenwaferError: ``trainer-data``, ``present-checkpoint-library`` without h5py.
    """

    def __init__(  # noqa: PLR0913 - the vendor's
        self,
        data_dir: str | list[str],
        batch_size: int,
        shuffle: bool = False,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        micro_batch_size: object = None,
        max_sequence_length: int | None = None,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        use_worker_cache: bool = False,
    ) -> None:
        listed = [data_dir] if isinstance(data_dir, str) else data_dir
        self._samples = _samples_of([Path(folder) for folder in listed])
        generator = None
        if shuffle_seed is not None:
            generator = torch.Generator().manual_seed(shuffle_seed)
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "generator": generator,
            "num_workers": num_workers,
            "drop_last": drop_last,
        }

    def create_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
        """A loader of torch."""
        return DataLoader(self._samples, **self._options)
