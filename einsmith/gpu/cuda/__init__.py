"""Programs on CUDA devices: the driver's interface, graphs of launches, and memory that lies on a device."""
