"""The LeRobot format on disk, and nothing else: read any version, write v3.0, exact statistics, video."""
