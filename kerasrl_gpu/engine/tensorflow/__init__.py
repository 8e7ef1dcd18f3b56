"""The engine on TensorFlow: state and pool are variables that compiled calls read and assign.

A pool is touched by two operations only, ResourceGather and ResourceScatterUpdate: they alone work
in place, copy nothing and have GPU kernels for uint8. Rows are written in front of the compiled
call, because XLA copies a captured variable that it writes.
"""
