"""Training: data loading, loop, guard, checkpoints, launch.

Importing this room needs no torch; the child process that trains does.
"""

from stack.train.launch import train
from stack.train.replay import replay_file
from stack.train.result import TrainResult
from stack.train.tensors import expected_tensors

__all__ = ["TrainResult", "expected_tensors", "replay_file", "train"]
