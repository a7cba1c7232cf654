"""What several plug-ins use: the toolchain in this process, and the text of kernels."""
