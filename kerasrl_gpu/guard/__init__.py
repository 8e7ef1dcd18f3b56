"""What to do about memory that runs short: levels, verdicts, events; nothing here acts."""
