"""Questions to the operating system. Each module is one concern, with forms for Linux, macOS and Windows; on other
systems, and where a system does not answer, a plain form is right but less precise."""
