"""The replay pool: columns on the device, counters on the host, pure functions between them."""
