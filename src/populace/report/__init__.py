"""From runs to pages."""
