"""The lean forward of a vision-language model over fused storages, shared by prefix, suffix and decode."""
