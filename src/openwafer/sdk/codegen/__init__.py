"""Native code of PE programs: LLVM text from the IR, compiled once and kept on disk."""
