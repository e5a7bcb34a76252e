"""The loader: the drop-in `DataLoader`, its driver in the training process, its workers."""
