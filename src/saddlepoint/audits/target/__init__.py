"""Everything that touches a foreign model: admission, wrappers and instrumentation."""
