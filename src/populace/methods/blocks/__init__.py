"""What several families share: schedules, releases, DP-SGD, networks, generators."""
