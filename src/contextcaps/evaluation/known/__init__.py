"""Labels that are known: given away in training, and in a measurement beside what co-occurrence alone can do."""
