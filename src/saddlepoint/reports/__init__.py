"""What an audit looks like on paper."""
