"""Tables in SQLite: what agl-sqlite's store and the one in memory are made of."""
