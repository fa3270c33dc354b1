"""Real servers for tests: one small launcher per service, started once per test run."""
