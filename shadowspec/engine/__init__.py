"""The measuring engine: paired propose-and-verify runs on one device.  Torch lives here and in kernels."""
