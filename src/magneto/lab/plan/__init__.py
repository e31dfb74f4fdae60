"""What a training needs before anything is allocated: memory, exchange between ranks, time."""
