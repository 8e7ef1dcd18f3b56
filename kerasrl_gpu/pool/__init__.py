"""The replay pool: rows on the device, counters on the host, pure functions between them."""
