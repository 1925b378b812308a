"""End without a word to NVFLARE."""
