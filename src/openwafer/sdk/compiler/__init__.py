"""From CSL text to a program in its output folder, each stage inspectable."""
