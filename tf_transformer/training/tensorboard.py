"""Values for TensorBoard, with TensorFlow or without."""

import os
import time
from pathlib import Path
from typing import Any

import keras

from tf_transformer.training.callbacks import is_installed
from tf_transformer.training.checkpoints import Logs, numbers_in
from tf_transformer.utils.files import user_path
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import checked


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes the values of each epoch with TensorBoard's package, which does not need TensorFlow.

    Args:
        logs: TensorBoard's directory.
    """

    @checked
    def __init__(self, logs: str | os.PathLike[str]):
        super().__init__()
        self.logs = user_path(logs, "logs")
        self._writer: Any = None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = self._writer or EventFileWriter(str(self.logs / "train"))
        for name, value in numbers_in(logs).items():
            summary = Summary(value=[Summary.Value(tag=f"epoch_{name}", simple_value=value)])
            self._writer.add_event(Event(wall_time=time.time(), step=epoch, summary=summary))
        self._writer.flush()

    def on_train_end(self, logs: object = None) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None


def board(logs: Path) -> list[keras.callbacks.Callback]:
    """Returns a callback that writes for TensorBoard, with TensorFlow if installed, or none without TensorBoard."""
    # TensorFlow also writes with TensorBoard's package.
    if not is_installed("tensorboard"):
        say("nothing for TensorBoard, which is not installed: pip install tensorboard")
        return []
    if is_installed("tensorflow"):
        return [keras.callbacks.TensorBoard(str(logs), write_graph=False)]
    return [TensorBoardScalars(logs)]
