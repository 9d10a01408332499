"""Parts of networks that are the same for every algorithm: memories, and convolutions that are fast on a CPU."""
