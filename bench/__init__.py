"""Time and memory of the dataset commands, against physical floors and against lerobot's own tools."""
