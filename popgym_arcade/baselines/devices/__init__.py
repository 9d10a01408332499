"""Where arrays live: the mesh of devices, several hosts, minibatches that need no communication."""
