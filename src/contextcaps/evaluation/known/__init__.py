"""Draw known labels for training, and measure what they are worth beside what co-occurrence alone can do."""
