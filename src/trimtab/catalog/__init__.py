"""The catalog: what is declared, in numbered versions, and how one version becomes the next."""
