"""One file a room; end_to_end/ runs the whole house."""
