"""One small interface over npu, cuda and cpu."""
