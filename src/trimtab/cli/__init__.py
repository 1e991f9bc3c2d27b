"""The command line. One module a command; nothing heavy is imported until its command runs."""
