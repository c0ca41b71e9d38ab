"""A travel agent, and the booking service that it books with."""
