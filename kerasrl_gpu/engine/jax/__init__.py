"""The engine on JAX: state and pool are arrays, donated to every call that writes them."""
