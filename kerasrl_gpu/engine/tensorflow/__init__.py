"""The engine on TensorFlow: state and pool are variables that compiled calls read and assign.

A pool is written by ResourceScatterUpdate and read by ResourceGather: they alone work in place,
copy nothing and have GPU kernels for uint8. Single bytes are read inside XLA, which takes a
variable's value as it lies. Rows are written in front of the compiled call, because XLA copies a
captured variable that it writes.
"""
