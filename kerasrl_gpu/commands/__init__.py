"""What the command line does; `cli` reads its arguments."""
