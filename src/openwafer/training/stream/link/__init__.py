"""The store's side of the link: fetches, pushes and updates of records."""
