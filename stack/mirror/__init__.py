"""Models and tokenizers mirrored from ModelScope, every file hashed; proofs that they are what they claim."""
