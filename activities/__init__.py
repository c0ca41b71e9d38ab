"""Side effects: models, tools, stores. Acts, never decides what comes next."""
