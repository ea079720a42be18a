"""What authors of plugins test with: fixtures, contract suites and fakes."""
