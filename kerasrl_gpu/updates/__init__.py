"""What each algorithm learns from a batch: pure functions, whoever calls them."""
