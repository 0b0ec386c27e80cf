"""The operators of the model: each folder holds a definition in plain torch and a Triton kernel."""
