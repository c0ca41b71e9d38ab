"""Steps of the store's schema, one file each, taken by `schema`. One that was released never changes."""
