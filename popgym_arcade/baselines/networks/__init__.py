"""Parts of networks that are the same for every algorithm: memories, encodings of frames, and convolutions."""
