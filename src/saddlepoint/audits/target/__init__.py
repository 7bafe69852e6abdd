"""The target of an audit: checks, copies, wrappers, and instrumentation of nets."""
